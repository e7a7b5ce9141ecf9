"""The loss of a batch as the formulas of docs/guides/algorithms.md say it: float64, row by row, one token at a time.

What `policy_loss` is compared with, however it is packed. It calls nothing of `streamrl.algorithms`; gradients are
autograd's, of formulas of single numbers. Distances must be small enough that no bound of an exponent is reached.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.learner.batch.packing import PackedBatch
from streamrl.types import RolloutRows


class TokenTable(torch.nn.Module):
    """A policy whose log-prob and entropy of a token are parameters of its own: it finds the token by its rollout
    log-prob, which must be another one for each."""

    def __init__(self, rows: RolloutRows, seed: int) -> None:
        super().__init__()
        random = np.random.default_rng([seed, rows.num_tokens])
        self.places = {float(value): t for t, value in enumerate(rows.rollout_logprobs)}
        moved = rows.rollout_logprobs + random.normal(0, 0.5, rows.num_tokens)
        self.logprobs = torch.nn.Parameter(torch.from_numpy(np.minimum(moved, -0.02)))
        self.entropies = torch.nn.Parameter(torch.from_numpy(random.uniform(0.1, 2.0, rows.num_tokens)))

    def forward(
        self, packed: PackedBatch, temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.tensor([self.places[value] for value in packed.rollout_logprobs.tolist()]).long()
        entropies = self.entropies[index]
        return self.logprobs[index], entropies if entropy_gradient else entropies.detach()


@dataclass
class SlowToken:
    """logprob, entropy: numbers with gradient. start, rollout, reference: log-probs before the step, at sampling and
    under the reference. lag: steps between the first two."""

    logprob: torch.Tensor
    entropy: torch.Tensor
    start: float
    rollout: float
    reference: float
    lag: int
    advantage: float
    proximal: float = 0.0
    weight: float = 1.0

    @property
    def now(self) -> float:
        """The log-prob, without gradient."""
        return self.logprob.item()

    @property
    def ratio(self) -> torch.Tensor:
        return (self.logprob - self.proximal).exp()


SlowRow = list[SlowToken]
Loss = Callable[[list[SlowRow], AlgorithmConfig], list[torch.Tensor]]
"""The loss of each token, in order, before its weight."""


def slow_rows(
    rows: RolloutRows,
    advantages: np.ndarray,
    step: int,
    policy: TokenTable,
    before: TokenTable | None = None,
    reference: TokenTable | None = None,
) -> list[SlowRow]:
    """The trained tokens of each row that has any. before: the policy before the step; None where it is `policy`."""
    start, referred = before or policy, reference or policy
    found = []
    for row in range(rows.num_rows):
        first, end = int(rows.offsets[row]), int(rows.offsets[row + 1])
        trained = [t for t in range(first + 1, end) if rows.token_origin[t] == 1 and rows.valid[row]]
        tokens = [
            SlowToken(
                policy.logprobs[t],
                policy.entropies[t],
                start.logprobs[t].item(),
                float(rows.rollout_logprobs[t]),
                referred.logprobs[t].item(),
                step - int(rows.token_steps[t]),
                float(advantages[row]),
            )
            for t in trained
        ]
        found += [tokens] if tokens else []
    return found


def slow_loss(rows: list[SlowRow], algorithm: AlgorithmConfig) -> torch.Tensor:
    """The scalar that is minimised, with gradient."""
    for row in rows:
        weigh(row, algorithm)
    losses = iter(SLOW_LOSSES[algorithm.loss](rows, algorithm))
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        for token in row:
            term = token.weight * next(losses) - algorithm.entropy_coef * token.entropy
            if algorithm.kl_coef:
                term = term + algorithm.kl_coef * divergence(token, algorithm.kl_estimator)
            total = total + term / share(row, rows, algorithm)
    return total


def share(row: SlowRow, rows: list[SlowRow], algorithm: AlgorithmConfig) -> float:
    """What the loss of a token of `row` is divided by."""
    return {
        "token_mean": sum(map(len, rows)),
        "seq_mean_token_mean": len(rows) * len(row),
        "seq_mean_token_sum": len(rows),
        "seq_mean_token_sum_norm": len(rows) * algorithm.horizon,
    }[algorithm.aggregation]


def weigh(row: SlowRow, algorithm: AlgorithmConfig) -> None:
    """Give the tokens of a row their proximal policy and their weight."""
    for token in row:
        between = token.start + (token.rollout - token.start) / token.lag if token.lag else token.start
        choices = {"recompute": token.start, "rollout": token.rollout, "interpolate": between}
        token.proximal = choices[algorithm.proximal]
    ratios = at_level([token.proximal - token.rollout for token in row], algorithm.correction_level)
    kept = [not rejected for rejected in rejections(row, algorithm)]
    for token, log_ratio, keep in zip(row, ratios, kept, strict=True):
        token.weight = corrected(math.exp(log_ratio), algorithm) if keep else 0.0


def at_level(values: list[float], level: str) -> list[float]:
    """Each token's own value, or the sum or the mean over its row."""
    if level == "token":
        return values
    total = math.fsum(values)
    return [total if level == "sequence" else total / len(values)] * len(values)


def corrected(ratio: float, algorithm: AlgorithmConfig) -> float:
    if algorithm.correction == "none":
        return 1.0
    if algorithm.correction == "tis":
        return min(ratio, algorithm.tis_cap)
    low = algorithm.correction_low if algorithm.correction == "icepop" else 0.0
    return ratio if low <= ratio <= algorithm.tis_cap else 0.0


def rejections(row: SlowRow, algorithm: AlgorithmConfig) -> list[bool]:
    """Whether each token of a row is left out."""
    rejection = algorithm.rejection
    if rejection.measure == "none":
        return [False] * len(row)
    distances = [token.start - token.rollout for token in row]
    if rejection.measure == "ratio":
        measured = [math.exp(value) for value in at_level(distances, rejection.level)]
    else:
        formula = {"k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - 1 - d}
        measured = at_level([formula[rejection.measure](d) for d in distances], rejection.level)
    low = -math.inf if rejection.low is None else rejection.low
    high = math.inf if rejection.high is None else rejection.high
    return [not low <= value <= high for value in measured]


def divergence(token: SlowToken, estimator: str) -> torch.Tensor:
    """Its estimate; with a plus the gradient is the distance."""
    d = token.logprob - token.reference
    value = {"k1": d, "k2": d * d / 2, "k3": (-d).exp() - 1 + d}[estimator.removesuffix("+")]
    return value.detach() + d.detach() * (d - d.detach()) if estimator.endswith("+") else value


# ---- losses


def token_by_token(formula: Callable[[SlowToken, AlgorithmConfig], torch.Tensor]) -> Loss:
    return lambda rows, algorithm: [formula(token, algorithm) for row in rows for token in row]


def bounded(ratio: torch.Tensor, advantage: float, algorithm: AlgorithmConfig) -> tuple[torch.Tensor, bool]:
    """PPO's loss of a ratio, and whether it is clipped."""
    plain, near = -advantage * ratio, -advantage * ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return (near, True) if near.item() > plain.item() else (plain, False)


def ppo(token: SlowToken, algorithm: AlgorithmConfig) -> torch.Tensor:
    loss, most = bounded(token.ratio, token.advantage, algorithm)[0], algorithm.dual_clip
    if most is not None and token.advantage < 0 and loss.item() > -token.advantage * most:
        return torch.tensor(-token.advantage * most, dtype=torch.float64)
    return loss


def reinforce(token: SlowToken, algorithm: AlgorithmConfig) -> torch.Tensor:
    return -token.advantage * token.logprob


def cispo(token: SlowToken, algorithm: AlgorithmConfig) -> torch.Tensor:
    ratio = token.ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high).item()
    return -ratio * token.advantage * token.logprob


def sapo(token: SlowToken, algorithm: AlgorithmConfig) -> torch.Tensor:
    tau = algorithm.sapo_tau_positive if token.advantage > 0 else algorithm.sapo_tau_negative
    return -token.advantage * 4 / tau / (1 + (-tau * (token.ratio - 1)).exp())


def dppo(token: SlowToken, algorithm: AlgorithmConfig) -> torch.Tensor:
    p, q = math.exp(token.now), math.exp(token.proximal)
    moved = abs(p - q)
    if algorithm.divergence == "kl":
        moved = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    up, down = p > q and moved > algorithm.clip_high, p < q and moved > algorithm.clip_low
    if up if token.advantage > 0 else down:
        return torch.zeros((), dtype=torch.float64)
    return -token.advantage * token.ratio.item() * token.logprob


def opd(token: SlowToken, algorithm: AlgorithmConfig) -> torch.Tensor:
    return divergence(token, "k1+")


def gspo(rows: list[SlowRow], algorithm: AlgorithmConfig) -> list[torch.Tensor]:
    found = []
    for row in rows:
        mean = math.fsum(token.now - token.proximal for token in row) / len(row)
        for token in row:
            ratio = math.exp(mean) * (token.logprob - token.now).exp()
            found.append(bounded(ratio, token.advantage, algorithm)[0])
    return found


def gmpo(rows: list[SlowRow], algorithm: AlgorithmConfig) -> list[torch.Tensor]:
    found = []
    for row in rows:
        logs = []
        for token in row:
            low, high = (-math.inf, algorithm.clip_high) if token.advantage > 0 else (-algorithm.clip_low, math.inf)
            logs.append((token.logprob - token.proximal).clamp(low, high))
        ratio = (sum(logs) / len(row)).exp()
        found += [-token.advantage * ratio for token in row]
    return found


def covariances(tokens: list[SlowToken]) -> list[float]:
    mean_logprob = math.fsum(token.now for token in tokens) / len(tokens)
    mean_advantage = math.fsum(token.advantage for token in tokens) / len(tokens)
    return [(token.now - mean_logprob) * (token.advantage - mean_advantage) for token in tokens]


def clip_cov(rows: list[SlowRow], algorithm: AlgorithmConfig) -> list[torch.Tensor]:
    tokens = [token for row in rows for token in row]
    judged = [bounded(token.ratio, token.advantage, algorithm) for token in tokens]
    losses = [loss for loss, _ in judged]
    fit = [
        place
        for place, cov in enumerate(covariances(tokens) if tokens else [])
        if algorithm.cov_low < cov < algorithm.cov_high and not judged[place][1]
    ]
    count = min(max(int(algorithm.cov_share * len(tokens)), 1), len(fit))
    for number in range(count):
        losses[fit[number * len(fit) // count]] = torch.zeros((), dtype=torch.float64)
    return losses


def kl_cov(rows: list[SlowRow], algorithm: AlgorithmConfig) -> list[torch.Tensor]:
    tokens = [token for row in rows for token in row]
    losses = [-token.advantage * token.ratio for token in tokens]
    if tokens:
        covs = covariances(tokens)
        largest = sorted(range(len(tokens)), key=lambda place: -covs[place])
        for place in largest[: max(int(algorithm.cov_share * len(tokens)), 1)]:
            losses[place] = losses[place] + algorithm.cov_kl * (tokens[place].logprob - tokens[place].proximal).abs()
    return losses


SLOW_LOSSES: dict[str, Loss] = {
    "ppo": token_by_token(ppo),
    "reinforce": token_by_token(reinforce),
    "gspo": gspo,
    "cispo": token_by_token(cispo),
    "sapo": token_by_token(sapo),
    "gmpo": gmpo,
    "dppo": token_by_token(dppo),
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "opd": token_by_token(opd),
}
