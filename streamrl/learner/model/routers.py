"""The routers of a model with experts: what they said in a forward, and routes that they take in place of their own.

Guarantees: weights of experts come from the current router's logits, whoever chose the experts, so gradient flows to
the router. A layer that is computed again in the backward takes the same routes. Knows the families whose router gives
each token the likeliest few of a softmax over all experts.

Shapes: L layers with experts, T tokens of a pack, X experts of a layer, K experts of a token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from streamrl.config.known import EXPERT_TYPES
from streamrl.errors import DataError

Route = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""A router's own forward: (hidden) to (logits [T, X], weights [T, K], experts int64 [T, K])."""


class Routed(NamedTuple):
    """What one router said: logits [T, X], experts int64 [T, K]."""

    logits: torch.Tensor
    experts: torch.Tensor


def require_routes_of(routes_TLK: torch.Tensor, num_layers: int, num_experts: int, experts_per_token: int) -> None:
    """Raise DataError for routes of another model."""
    expected = num_layers, experts_per_token
    if tuple(routes_TLK.shape[1:]) != expected:
        raise DataError(
            f"rollouts have routes of {tuple(routes_TLK.shape[1:])} layers and experts of a token, this model has "
            f"{expected}: they were recorded with another model; set learner.router_replay = false"
        )
    if routes_TLK.numel() and int(routes_TLK.max()) >= num_experts:
        raise DataError(
            f"rollouts have routes to expert {int(routes_TLK.max())} of {num_experts}: they were recorded "
            "with another model; set learner.router_replay = false"
        )


class Routers:
    """Those of one model, whose forward it takes over."""

    def __init__(self, modules: list[Any]) -> None:
        self.num_experts: int = modules[0].num_experts
        self.experts_per_token: int = modules[0].top_k
        self._routes: torch.Tensor | None = None
        self._said: dict[int, Routed] = {}
        for layer, module in enumerate(modules):
            renormalises = bool(getattr(module, "norm_topk_prob", True))
            module.forward = partial(self._route, layer, module.forward, renormalises)
        self.num_layers = len(modules)

    @property
    def said(self) -> list[Routed]:
        """Of the last forward, by layer."""
        return [self._said[layer] for layer in range(self.num_layers)]

    @property
    def routes(self) -> torch.Tensor | None:
        """What the last forward took, as `begin` was told."""
        return self._routes

    def begin(self, routes_TLK: torch.Tensor | None = None) -> None:
        """Before a forward. routes: int64 [T, L, K], experts that it takes; -1 where the router chooses itself. Raises
        DataError for routes of another model."""
        if routes_TLK is not None:
            require_routes_of(routes_TLK, self.num_layers, self.num_experts, self.experts_per_token)
        self._routes = routes_TLK
        self._said = {}

    @torch.compiler.disable
    def _route(
        self, layer: int, own: Route, renormalises: bool, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, weights, experts = own(hidden_states)
        if self._routes is not None:
            recorded = self._routes[:, layer]
            experts = torch.where(recorded < 0, experts, recorded)
            taken = logits.softmax(-1, dtype=torch.float32).gather(-1, experts)
            if renormalises:
                taken = taken / taken.sum(-1, keepdim=True)
            weights = taken.to(weights.dtype)
        self._said[layer] = Routed(logits, experts)
        return logits, weights, experts


def routers_of(model: PreTrainedModel) -> Routers | None:
    """None for a model without experts, and for one of a family whose routers are not known here."""
    if model.config.model_type not in EXPERT_TYPES:
        return None
    found: list[nn.Module] = [one for one in model.modules() if isinstance(one, Qwen3MoeTopKRouter | MixtralTopKRouter)]
    return Routers(found) if found else None
