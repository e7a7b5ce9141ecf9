"""The same steps by one process with the whole Hugging Face model: each row alone, no pack, no rank, torch's AdamW."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, loss_mask
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
    ) -> None:
        self.model = model
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
        found = [self._row(rows, row) for row in torch.unique_consecutive(pack.rows).tolist()]
        logprobs, entropies = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _row(self, rows: RolloutRows, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        span = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
        ids = torch.from_numpy(rows.token_ids[span].astype("int64"))
        trained = torch.from_numpy(loss_mask(rows)[span]).nonzero()[:, 0]
        logits = self.model(ids[None], use_cache=False).logits[0] / self._temperature
        logprobs = F.log_softmax(logits.float(), -1)[trained - 1]
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, ids[trained, None])[:, 0], entropies

    def step(self, rows: RolloutRows, advantages: Sequence[float]) -> dict[str, float]:
        """One update on all rows; metrics of the whole batch."""
        (whole,) = pack(rows, advantages, 10**6)

        def policy(*_: object) -> tuple[torch.Tensor, torch.Tensor]:
            return self.logprobs(rows, whole)

        loss, sums = policy_loss(policy, whole, count_targets(rows), self._algorithm, self._temperature)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._config.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._steps_done, self._config, self._total_steps)
        self.optimizer.step()
        self._steps_done += 1
        return {**mean_over_updates([sums], 1), "grad/norm": norm.item()}
