"""PPO with an auxiliary model as its formulas say it: float64, token by token, torch's own optimizer and attention.

What the learner's step is compared with. It packs nothing, shares no prompt, and knows no sums but Python's.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, OptimizerConfig
from streamrl.types import RolloutRows, TokenOrigin


class SlowRow:
    """The sampled tokens of one row: its ids, the places of its targets, and what was sampled under which log-prob."""

    def __init__(self, rows: RolloutRows, number: int) -> None:
        start, end = rows.offsets[number], rows.offsets[number + 1]
        self.ids = torch.from_numpy(rows.token_ids[start:end].astype(np.int64))
        self.places = [t for t in range(1, end - start) if rows.token_origin[start + t] == TokenOrigin.SAMPLED]
        self.rollout = torch.from_numpy(rows.rollout_logprobs[start:end].astype(np.float64))[self.places]
        self.score = float(rows.rewards[number])
        self.group = int(rows.group[number])
        self.advantages: list[float] = []
        self.returns: list[float] = []
        self.values: list[float] = []
        self.paid: list[float] = []
        """Taken off the reward of each token; nothing where it is empty."""


def logprobs(model: PreTrainedModel, row: SlowRow, temperature: float) -> torch.Tensor:
    logits = model(input_ids=row.ids[None]).logits[0] / temperature
    places = torch.tensor(row.places)
    return logits.log_softmax(-1)[places - 1, row.ids[places]]


def pay(rows: list[SlowRow], reference: PreTrainedModel, estimator: str, coef: float, temperature: float) -> float:
    """Have each token of the rows pay its divergence from the reference; the mean divergence."""
    found = []
    for row in rows:
        distance = (row.rollout - logprobs(reference.double().eval(), row, temperature).detach()).tolist()
        formula = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}[estimator]
        row.paid = [coef * formula(one) for one in distance]
        found += [formula(one) for one in distance]
    return sum(found) / len(found)


class SlowStep(ABC):
    """A policy and an auxiliary model; `step` makes one step of both on one mini-batch or several."""

    def __init__(
        self, policy: PreTrainedModel, algorithm: AlgorithmConfig, auxiliary_optimizer: OptimizerConfig
    ) -> None:
        self.policy = policy.double().eval()
        self.algorithm, self.auxiliary_optimizer = algorithm, auxiliary_optimizer

    @abstractmethod
    def add_advantages(self, rows: list[SlowRow]) -> None:
        """Give the rows their advantages."""

    @abstractmethod
    def auxiliary_params(self) -> list[nn.Parameter]: ...

    @abstractmethod
    def auxiliary_loss(self, rows: list[SlowRow]) -> torch.Tensor: ...

    def policy_loss(self, rows: list[SlowRow], before: dict[int, torch.Tensor], temperature: float) -> torch.Tensor:
        """Decoupled PPO against the policy before the step, weighed by truncated importance."""
        terms = []
        for row in rows:
            start, advantages = before[id(row)], torch.tensor(row.advantages, dtype=torch.float64)
            ratio = (logprobs(self.policy, row, temperature) - start).exp()
            bounded = ratio.clamp(1 - self.algorithm.clip_low, 1 + self.algorithm.clip_high)
            weight = (start - row.rollout).exp().clamp(max=self.algorithm.tis_cap)
            terms.append(-weight * torch.minimum(ratio * advantages, bounded * advantages))
        return torch.cat(terms).mean()

    def step(
        self,
        mini_batches: list[list[SlowRow]],
        optimizer: OptimizerConfig,
        temperature: float,
        epochs: int,
    ) -> None:
        """All updates of one step, the first that the optimizers make."""
        rows = [row for mini_batch in mini_batches for row in mini_batch]
        self.add_advantages(rows)
        before = {id(row): logprobs(self.policy, row, temperature).detach() for row in rows}
        policy = _adamw(list(self.policy.parameters()), optimizer)
        auxiliary = _adamw(self.auxiliary_params(), self.auxiliary_optimizer)
        for _ in range(epochs):
            for mini_batch in mini_batches:
                _update(policy, self.policy_loss(mini_batch, before, temperature), optimizer.max_grad_norm)
                _update(auxiliary, self.auxiliary_loss(mini_batch), self.auxiliary_optimizer.max_grad_norm)


class SlowPpo(SlowStep):
    """The auxiliary model is a critic."""

    def __init__(
        self, policy: PreTrainedModel, decoder: PreTrainedModel, algorithm: AlgorithmConfig, critic: CriticConfig
    ) -> None:
        super().__init__(policy, algorithm, critic.optimizer)
        self.decoder = decoder.double().eval()
        self.head = nn.Parameter(torch.zeros(policy.config.hidden_size, dtype=torch.float64))
        self.settings = critic

    def auxiliary_params(self) -> list[nn.Parameter]:
        return [*self.decoder.parameters(), self.head]

    def value(self, row: SlowRow) -> torch.Tensor:
        hidden = self.decoder(input_ids=row.ids[None]).last_hidden_state[0]
        return hidden[torch.tensor(row.places) - 1] @ self.head

    def add_advantages(self, rows: list[SlowRow]) -> None:
        """GAE by the recursion, from each row's end, then whitening over all tokens."""
        settings = self.settings
        for row in rows:
            row.values = self.value(row).detach().tolist()
            mixed = settings.policy_lambda
            if settings.length_alpha is not None:
                mixed = max(0.0, 1.0 - 1.0 / (settings.length_alpha * len(row.places)))
            after, for_policy, for_value = 0.0, 0.0, 0.0
            row.advantages, row.returns = [], []
            for place in reversed(range(len(row.places))):
                reward = row.score if place == len(row.places) - 1 else 0.0
                reward -= row.paid[place] if row.paid else 0.0
                error = reward + settings.gamma * after - row.values[place]
                for_policy = error + settings.gamma * mixed * for_policy
                for_value = error + settings.gamma * settings.value_lambda * for_value
                after = row.values[place]
                row.advantages.insert(0, for_policy)
                row.returns.insert(0, for_value + after)
        if settings.whiten:
            whiten(rows)

    def auxiliary_loss(self, rows: list[SlowRow]) -> torch.Tensor:
        terms, clip = [], self.settings.value_clip
        for row in rows:
            values, old, returns = self.value(row), torch.tensor(row.values), torch.tensor(row.returns)
            loss = (values - returns.double()) ** 2
            if clip is not None:
                near = torch.maximum(torch.minimum(values, old.double() + clip), old.double() - clip)
                loss = torch.maximum(loss, (near - returns.double()) ** 2)
            terms.append(0.5 * loss)
        return torch.cat(terms).mean()


def whiten(rows: list[SlowRow]) -> None:
    """Over all tokens, by the unbiased variance."""
    every = [one for row in rows for one in row.advantages]
    mean = sum(every) / len(every)
    variance = sum((one - mean) ** 2 for one in every) / (len(every) - 1)
    for row in rows:
        row.advantages = [(one - mean) / (variance + 1e-8) ** 0.5 for one in row.advantages]


def _adamw(params: list[Any], config: OptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0)


def _update(optimizer: torch.optim.Optimizer, loss: torch.Tensor, max_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    optimizer.step()
