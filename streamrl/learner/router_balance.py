"""How evenly routers share tokens out to experts: the auxiliary loss that makes them, and what is measured of it.

The loss is that of the Switch Transformer (Fedus et al. 2021, equations 4 to 6) as transformers computes it: X sum_e
f_e P_e, with f_e the choices of an expert for each token and P_e its mean probability, over all layers together. It is
of the tokens that predict a trained one, each as often as it does.

Guarantees: f is of the whole mini-batch on all ranks, so the loss does not depend on how it was cut into packs. That
takes a forward more; without the loss there is none.

Shapes: L layers with experts, X experts of a layer.
"""

from collections.abc import Callable, Iterable

import torch

from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.routers import Routers

SumOverRanks = Callable[[torch.Tensor], torch.Tensor]


def expert_shares(counts_X: torch.Tensor, experts_per_token: int) -> tuple[torch.Tensor, float]:
    """f of each expert, [X], and how many choices there were, one for each token and layer. counts: how often each
    expert was chosen, over all layers. No token at all leaves a loss of 0."""
    choices = max(float(counts_X.sum()) / experts_per_token, 1.0)
    return counts_X / choices, choices


def router_metrics(
    counts_LX: torch.Tensor,
    probs_LX: torch.Tensor,
    entropy: float,
    replayed: float | None,
    experts_per_token: int,
) -> dict[str, float]:
    """Of a mini-batch on all ranks. counts, probs: by layer and expert, how often it was chosen and the sum of its
    probabilities; entropy: the sum of the distributions', in nats; replayed: choices that were the engine's, None where
    routes are not replayed.

    `router/load_max_over_mean`: choices of the busiest expert of a layer over their mean, of the layer where that is
    most. `router/entropy`: of a router's distribution, in nats, the mean over tokens and layers. `loss/router_aux`: the
    loss without its coefficient. `router/replayed_share`, where routes are replayed: how many of the choices, by token
    and layer, were those of the engine. No token is ever dropped."""
    num_experts = counts_LX.shape[-1]
    share_X, choices = expert_shares(counts_LX.sum(0), experts_per_token)
    busiest = counts_LX.max(-1).values / counts_LX.mean(-1).clamp(min=1.0 / num_experts)
    return {
        **({} if replayed is None else {"router/replayed_share": replayed / choices}),
        "router/load_max_over_mean": float(busiest.max()),
        "router/entropy": entropy / choices,
        "loss/router_aux": float(num_experts * (share_X * probs_LX.sum(0)).sum() / choices),
    }


class RouterBalance:
    """Of one mini-batch.

    Example:
        balance = RouterBalance(routers, 1e-3, group.sum)
        balance.count(packs, lambda pack: policy(pack, 1.0))    # collective; only where there is a loss
        loss = loss + balance.term(pack)                         # after the forward of each pack
        metrics = balance.metrics()                              # collective
    """

    def __init__(
        self, routers: Routers, coefficient: float, sum_over_ranks: SumOverRanks, *, replays: bool = False
    ) -> None:
        self._routers, self._coefficient, self._sum = routers, coefficient, sum_over_ranks
        self._share_X: torch.Tensor | None = None
        self._choices = 0.0
        self._counts_LX = self._probs_LX = self._entropy = torch.zeros((), dtype=torch.float64)
        self._replayed = torch.zeros((), dtype=torch.float64)
        self._replays = replays

    @torch.no_grad()
    def count(self, packs: Iterable[PackedBatch], forward: Callable[[PackedBatch], object]) -> None:
        """Collective. Find how often each expert is chosen, by a forward of each pack."""
        if not self._coefficient:
            return
        counts_X = torch.zeros((), dtype=torch.float64)
        for pack in packs:
            forward(pack)
            counts_X = counts_X + self._counted(pack).sum(0)
        self._share_X, self._choices = expert_shares(self._sum(counts_X), self._routers.experts_per_token)

    def term(self, pack: PackedBatch) -> torch.Tensor | float:
        """What a pack adds to the loss, by what the routers said in its forward."""
        probs_LX = torch.stack([one.logits[pack.predictors].float().softmax(-1).sum(0) for one in self._routers.said])
        with torch.no_grad():
            self._counts_LX = self._counts_LX + self._counted(pack)
            self._probs_LX = self._probs_LX + probs_LX.double()
            self._entropy = self._entropy + self._entropy_of(pack)
            if self._routers.routes is not None:
                known = (self._routers.routes[pack.predictors] >= 0).all(-1)
                self._replayed = self._replayed + known.sum().double()
        if self._share_X is None:
            return 0.0
        share_X = self._share_X.to(probs_LX.dtype)
        return self._coefficient * self._routers.num_experts / self._choices * (probs_LX.sum(0) * share_X).sum()

    def metrics(self) -> dict[str, float]:
        """Collective. As `router_metrics`."""
        counts_LX, probs_LX = self._sum(self._counts_LX), self._sum(self._probs_LX)
        entropy = float(self._sum(self._entropy))
        replayed = float(self._sum(self._replayed)) if self._replays else None
        return router_metrics(counts_LX, probs_LX, entropy, replayed, self._routers.experts_per_token)

    def _counted(self, pack: PackedBatch) -> torch.Tensor:
        """float64 [L, X]. As a product, since a scatter on a GPU has no order."""
        numbers = torch.arange(self._routers.num_experts, device=pack.predictors.device)
        chosen = [one.experts[pack.predictors].flatten() for one in self._routers.said]
        return torch.stack([(one[:, None] == numbers).double().sum(0) for one in chosen])

    def _entropy_of(self, pack: PackedBatch) -> torch.Tensor:
        logs = [one.logits[pack.predictors].float().log_softmax(-1) for one in self._routers.said]
        return -torch.stack([(log.exp() * log).sum().double() for log in logs]).sum()
