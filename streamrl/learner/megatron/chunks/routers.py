"""The routers of a chunk: routes that they take in the place of their own, the loss that balances experts, and what is
measured of both, as `model.routers` and `router_balance` have them for the other backend.

What the routers are to do with a pack is part of its layout, which megatron-core hands to each layer, and once more to
one that it computes again in the backward: a pack has its own routes there, whichever packs went through since, and
what is measured of a layer twice counts once.

Shapes: L layers of the model, T tokens of a pack that this rank has, X experts of a layer, K experts of a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.routers import require_routes_of

_Choose = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""megatron-core's own choice: (scores [T, X], K, groups...) to (scores [T, K], experts int64 [T, K])."""


class Measured(NamedTuple):
    """Of one layer and pack, in float64: choices and sums of probabilities by expert, [X]; the sum of the
    distributions' entropies; how many choices were the engine's."""

    counts_X: torch.Tensor
    probs_X: torch.Tensor
    entropy: torch.Tensor
    replayed: torch.Tensor


@dataclass(eq=False)
class PackRouting:
    """A pack on its way through a chunk. routes: int64 [T, L, K], -1 where a router chooses itself. predicts: float64
    [T], how many trained tokens each one predicts. loss_X: of one of these in a layer, by what is to be added times the
    probability of an expert. measured: by layer, where it is."""

    routes: torch.Tensor | None
    predicts: torch.Tensor
    loss_X: torch.Tensor | None
    measured: dict[int, Measured] | None


class ChunkRouters:
    """Those of the layers of one chunk, on one of the tensor ranks that tokens are spread over. replays: whether packs'
    routes are taken."""

    def __init__(self, layers: Sequence[Any], num_layers: int, *, rank: int, ranks: int) -> None:
        """layers: of the chunk, each with experts. num_layers: of the whole model. rank, ranks: of those that have
        other tokens of a pack."""
        config = layers[0].config
        self.num_layers = num_layers
        self.num_experts: int = config.num_moe_experts
        self.experts_per_token: int = config.moe_router_topk
        self.replays = False
        self._rank, self._ranks = rank, ranks
        self._loss_X: torch.Tensor | None = None
        self._passes: list[PackRouting] | None = None
        for layer in layers:
            _LayerRouter(layer)

    def measure(self, loss_X: torch.Tensor | None = None) -> None:
        """Measure the packs from now on. loss_X: adds a loss to each of them, as `PackRouting` has it."""
        self._loss_X, self._passes = loss_X, []

    def measured(self) -> list[tuple[int, Measured]]:
        """By layer of the whole model, of each pack since `measure`, whose last one this was."""
        passes, self._passes, self._loss_X = self._passes or [], None, None
        return [found for one in passes for found in (one.measured or {}).items()]

    def begin(self, pack: PackedBatch) -> PackRouting:
        """Before a pack goes through the layers. Raises DataError for routes of another model."""
        routes = pack.routes if self.replays else None
        if routes is not None:
            require_routes_of(routes, self.num_layers, self.num_experts, self.experts_per_token)
            routes = self._own(routes)
        predicts = self._own(torch.bincount(pack.predictors, minlength=pack.num_tokens).double())
        if self._passes is None:
            return PackRouting(routes, predicts, None, None)
        begun = PackRouting(routes, predicts, self._loss_X, {})
        self._passes.append(begun)
        return begun

    def _own(self, of_tokens: torch.Tensor) -> torch.Tensor:
        return of_tokens.chunk(self._ranks)[self._rank]


class _LayerRouter:
    """Stands before a layer's router. megatron-core asks it for the experts as it would ask a `RouterReplay` of its
    own, which knows one pack at a time."""

    def __init__(self, layer: Any) -> None:
        self._layer: int = layer.layer_number - 1
        self._pack: PackRouting | None = None
        router = layer.mlp.router
        self._own = router.routing
        router.routing = self._route
        router.router_replay = self
        layer.register_forward_pre_hook(self._begin, with_kwargs=True)

    def _begin(self, _layer: nn.Module, _args: tuple[Any, ...], given: dict[str, Any]) -> None:
        self._pack = given["packed_seq_params"].routing

    def get_replay_topk(
        self, scores: torch.Tensor, topk: int, num_groups: int | None, group_topk: int | None, choose: _Choose
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The name is megatron-core's."""
        values, experts = choose(scores, topk, num_groups=num_groups, group_topk=group_topk)
        routes = None if self._pack is None else self._pack.routes
        if routes is None:
            return values, experts
        recorded = routes[:, self._layer]
        experts = torch.where(recorded < 0, experts, recorded)
        return scores.gather(1, experts), experts

    def _route(self, logits: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """logits: [T, 1, X]. Returns weights and choices, [T, X] each."""
        weights, chosen = self._own(logits, **more)
        pack = self._pack
        if pack is None or pack.measured is None:
            return weights, chosen
        logs = logits.flatten(0, -2).float().log_softmax(-1)
        pack.measured[self._layer] = _measure(logs.detach().double(), chosen, pack, self._layer)
        if pack.loss_X is not None:
            loss = (pack.predicts.to(logs.dtype) @ logs.exp() * pack.loss_X.to(logs.dtype)).sum()
            weights = _WithLoss.apply(weights, loss)
        return weights, chosen


def _measure(logs: torch.Tensor, chosen: torch.Tensor, pack: PackRouting, layer: int) -> Measured:
    predicts = pack.predicts
    replayed = torch.zeros((), dtype=torch.float64, device=logs.device)
    if pack.routes is not None:
        replayed = predicts[(pack.routes[:, layer] >= 0).all(-1)].sum()
    probs = logs.exp()
    return Measured(predicts @ chosen.double(), predicts @ probs, -(predicts @ (probs * logs)).sum(), replayed)


class _WithLoss(torch.autograd.Function):
    """A tensor as it is, whose backward is also that of a loss."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(loss)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (loss,) = ctx.saved_tensors
        return gradient, torch.ones_like(loss)
