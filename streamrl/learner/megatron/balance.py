"""How evenly the routers of all stages share tokens out to experts, as `streamrl.learner.router_balance` has it for a
model that one process has whole: the loss, for which the packs go through once before, and what is measured.
"""

from collections.abc import Callable, Sequence

import torch

from streamrl.learner.megatron.chunks.routers import ChunkRouters
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.router_balance import expert_shares, router_metrics


class MegatronBalance:
    """Of the chunks of one rank, one mini-batch after the other.

    Example:
        balance.begin(lambda: run(packs))    # collective
        run_backward(packs)
        metrics = balance.metrics()          # collective
    """

    def __init__(self, routers: Sequence[ChunkRouters], coefficient: float, ranks: MegatronRanks) -> None:
        """coefficient: of the loss."""
        self._routers, self._coefficient, self._ranks = routers, coefficient, ranks

    @torch.no_grad()
    def begin(self, run: Callable[[], object]) -> None:
        """Collective. Before the gradients of packs are computed. run: takes them through forward; only where there is
        a loss."""
        self._measure(None)
        if self._coefficient:
            run()
            counts_LX, *_ = self._measured()
            share_X, choices = expert_shares(counts_LX.sum(0), self._routers[0].experts_per_token)
            self._measure(self._coefficient * len(share_X) / choices * share_X)

    def metrics(self) -> dict[str, float]:
        """Collective. As `router_metrics`, of the packs since `begin`."""
        counts_LX, probs_LX, entropy, replayed = self._measured()
        known = float(replayed) if self._routers[0].replays else None
        return router_metrics(counts_LX, probs_LX, float(entropy), known, self._routers[0].experts_per_token)

    def _measure(self, loss_X: torch.Tensor | None) -> None:
        for routers in self._routers:
            routers.measure(loss_X)

    def _measured(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Collective. Choices and probabilities, [L, X], entropy and what was replayed, over all ranks: each layer is
        on one stage, and each token of a pack is looked at by one rank of it."""
        first = self._routers[0]
        width = first.num_experts
        sums = torch.zeros(first.num_layers, 2 * width + 2, dtype=torch.float64, device=self._ranks.group.device)
        for routers in self._routers:
            for layer, one in routers.measured():
                sums[layer] += torch.cat((one.counts_X, one.probs_X, one.entropy[None], one.replayed[None]))
        sums = self._ranks.group.sum(sums)
        return sums[:, :width], sums[:, width : 2 * width], sums[:, -2].sum(), sums[:, -1].sum()
