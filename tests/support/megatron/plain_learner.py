"""The same steps by one process with the whole Hugging Face model: each row alone, no pack, no rank, torch's AdamW."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, loss_mask
from streamrl.learner.model.routers import routers_of
from streamrl.learner.objectives import policy_loss
from streamrl.learner.optim.schedule import learning_rate
from streamrl.learner.sums import mean_over_updates
from streamrl.types import RolloutRows


class PlainLearner:
    """Its `model` learns."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerConfig,
        algorithm: AlgorithmConfig,
        total_steps: int,
        temperature: float,
        router_aux_loss_coef: float = 0.0,
        router_replay: bool = False,
    ) -> None:
        self.model = model
        self._coef, self._replays = router_aux_loss_coef, router_replay
        self._routers = routers_of(model)
        self._routed: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._config, self._algorithm = optimizer, algorithm
        self._total_steps, self._temperature = total_steps, temperature
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=optimizer.betas, eps=optimizer.eps)
        self._steps_done = 0

    def logprobs(self, rows: RolloutRows, pack: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_K, entropy_K) of a pack's targets, both with gradient."""
        self._routed = []
        found = [self._row(rows, row) for row in torch.unique_consecutive(pack.rows).tolist()]
        logprobs, entropies = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _row(self, rows: RolloutRows, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        span = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
        ids = torch.from_numpy(rows.token_ids[span].astype("int64"))
        trained = torch.from_numpy(loss_mask(rows)[span]).nonzero()[:, 0]
        routes = torch.from_numpy(rows.routes[span].astype("int64")) if self._replays else None
        if self._routers is not None:
            self._routers.begin(routes)
        logits = self.model(ids[None], use_cache=False).logits[0] / self._temperature
        if self._routers is not None:
            self._look(trained - 1, routes)
        logprobs = F.log_softmax(logits.float(), -1)[trained - 1]
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, ids[trained, None])[:, 0], entropies

    def _look(self, predictors: torch.Tensor, routes: torch.Tensor | None) -> None:
        """At what the routers said of the tokens that predict a trained one."""
        probs = torch.stack([one.logits[predictors].softmax(-1) for one in self._routers.said])
        chosen = torch.stack([one.experts[predictors] for one in self._routers.said])
        known = torch.zeros(0) if routes is None else (routes[predictors] >= 0).all(-1)
        self._routed.append((probs, chosen, known))

    def _balance(self) -> tuple[torch.Tensor, dict[str, float]]:
        """X sum_e f_e P_e over all tokens and layers together, and what is told of the routers."""
        probs, chosen, known = (
            torch.cat(parts, dim) for parts, dim in zip(zip(*self._routed, strict=True), (1, 1, 0), strict=True)
        )
        choices = F.one_hot(chosen, probs.shape[-1]).sum(2).to(probs.dtype)
        loss = probs.shape[-1] * (choices.mean((0, 1)) * probs.mean((0, 1))).sum()
        load = choices.mean(1)
        told = {
            "router/load_max_over_mean": (load.max(-1).values / load.mean(-1)).max().item(),
            "router/entropy": -(probs * probs.log()).sum(-1).mean().item(),
            "loss/router_aux": loss.item(),
        }
        return loss, {**told, "router/replayed_share": known.float().mean().item()} if self._replays else told

    def step(self, rows: RolloutRows, advantages: Sequence[float]) -> dict[str, float]:
        """One update on all rows; metrics of the whole batch."""
        (whole,) = pack(rows, advantages, 10**6)

        def policy(*_: object) -> tuple[torch.Tensor, torch.Tensor]:
            return self.logprobs(rows, whole)

        loss, sums = policy_loss(policy, whole, count_targets(rows), self._algorithm, self._temperature)
        balance, routed = (0.0, {}) if self._routers is None else self._balance()
        self.optimizer.zero_grad()
        (loss + self._coef * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._config.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._steps_done, self._config, self._total_steps)
        self.optimizer.step()
        self._steps_done += 1
        return {**mean_over_updates([sums], 1), **routed, "grad/norm": norm.item()}
