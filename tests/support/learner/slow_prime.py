"""PRIME as its formulas say it, in the manner of `slow_ppo`: float64, a loop over tokens, rows and their groups."""

import torch
from support.learner.slow_ppo import SlowRow, SlowStep, logprobs, whiten
from torch import nn
from transformers import PreTrainedModel

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import PrimeConfig


class SlowPrime(SlowStep):
    """The auxiliary model is an implicit reward model, measured from a reference that stands still."""

    def __init__(
        self,
        policy: PreTrainedModel,
        model: PreTrainedModel,
        reference: PreTrainedModel,
        algorithm: AlgorithmConfig,
        prime: PrimeConfig,
    ) -> None:
        super().__init__(policy, algorithm, prime.optimizer)
        self.model, self.reference = model.double().eval(), reference.double().eval()
        self.settings = prime

    def auxiliary_params(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def rewards(self, row: SlowRow) -> torch.Tensor:
        """Of each token; the models' own distributions, whatever rollouts were sampled with."""
        distance = logprobs(self.model, row, 1.0) - logprobs(self.reference, row, 1.0).detach()
        return self.settings.beta * distance

    def add_advantages(self, rows: list[SlowRow]) -> None:
        settings = self.settings
        given = {id(row): self.rewards(row).detach().tolist() for row in rows}
        if settings.normalise:
            largest = max(abs(sum(one[place:])) for one in given.values() for place in range(len(one)))
            given = {name: [reward / (largest + 1e-6) for reward in one] for name, one in given.items()}
        for row in rows:
            mates = [other for other in rows if other.group == row.group and other is not row]
            row.advantages = [0.0] * len(row.places)
            if not mates:
                continue
            outcome = row.score - sum(mate.score for mate in mates) / len(mates)
            baseline = sum(sum(given[id(mate)]) / len(mate.places) for mate in mates) / len(mates)
            for place in range(len(row.places)):
                later = enumerate(given[id(row)][place:])
                process = sum(settings.gamma**steps * (reward - baseline) for steps, reward in later)
                row.advantages[place] = settings.process_coef * process + settings.outcome_coef * outcome
        if settings.whiten:
            whiten(rows)

    def auxiliary_loss(self, rows: list[SlowRow]) -> torch.Tensor:
        """The mean over rows of the cross-entropy."""
        terms = []
        for row in rows:
            chance = 1.0 / (1.0 + (-self.rewards(row).sum()).exp())
            terms.append(-(row.score * chance.log() + (1.0 - row.score) * (1.0 - chance).log()))
        return torch.stack(terms).mean()
