"""Weights, rejections, entropy and divergence in the objective: against one token at a time in double precision, over
random ragged batches, cut into packs and shares in every way."""

import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.corrections import CORRECTIONS, importance
from streamrl.algorithms.divergences import DIVERGENCES, REWARD_DIVERGENCES, k1, k2, k3, k3_straight
from streamrl.algorithms.levels import LEVELS
from streamrl.algorithms.losses import LOSSES, ROW_LOSSES, TEACHER_LOSSES
from streamrl.algorithms.rejections import REJECTIONS
from streamrl.config.rules.learner.algorithm import ALGORITHM_RULES
from streamrl.config.rules.learner.algorithm import ROW_LOSSES as RULED_ROW_LOSSES
from streamrl.config.rules.learner.algorithm import TEACHER_LOSSES as RULED_TEACHER_LOSSES
from streamrl.config.schema.algorithm import AlgorithmConfig, ReferenceConfig, RejectionConfig
from streamrl.config.schema.fields import leaves, literals
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, loss_mask, row_of_token, row_targets, select_rows
from streamrl.learner.objectives import Objective, policy_loss
from streamrl.learner.sums import LAGS, Sums
from streamrl.models.load import prepare_model_folder
from streamrl.types import RolloutRows

STEP = 11
"""The step that is trained; tokens are of steps 0 to 11, so the oldest are of the last age that is counted apart."""
CPU = torch.device("cpu")
WITHOUT_RATIO = ("reinforce", "opd")
CAP, LOW = 1.5, 0.7
BOUNDS = {"ratio": (0.6, 1.6), "k1": (-0.4, 0.5), "k2": (None, 0.1), "k3": (0.001, None)}


class Table(torch.nn.Module):
    """A policy whose log-prob and entropy of a token are parameters of its own: it finds the token by its rollout
    log-prob, which is another one for each."""

    def __init__(self, rows: RolloutRows, seed: int) -> None:
        super().__init__()
        random = np.random.default_rng([seed, 1])
        self.places = {float(value): t for t, value in enumerate(rows.rollout_logprobs)}
        offsets = random.normal(0, 0.5, rows.num_tokens)
        self.logprobs = torch.nn.Parameter(torch.from_numpy(rows.rollout_logprobs + offsets))
        self.entropies = torch.nn.Parameter(torch.from_numpy(random.uniform(0.1, 2.0, rows.num_tokens)))

    def forward(
        self, packed: PackedBatch, temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.tensor([self.places[value] for value in packed.rollout_logprobs.tolist()]).long()
        entropies = self.entropies[index]
        return self.logprobs[index], entropies if entropy_gradient else entropies.detach()


class Ran:
    """loss, gradients by each token's log-prob and entropy, and metrics, over all packs."""

    def __init__(self, objective: Objective, rows: RolloutRows, advantages: np.ndarray, seed: int, *parts: int) -> None:
        """parts: token budgets; with several, rows are dealt to as many shares, one budget for each."""
        table, total = Table(rows, seed), count_targets(rows)
        self.sums, self.loss = Sums.zero(CPU), 0.0
        for share, budget in enumerate(parts):
            mine = np.arange(share, rows.num_rows, len(parts))
            for packed in pack(select_rows(rows, mine), advantages[mine], budget, step=STEP):
                part, more = objective(table, packed, total)
                part.backward()
                self.loss, self.sums = self.loss + part.item(), self.sums.plus(more)
        self.logprobs, self.entropies = (
            torch.zeros_like(p) if p.grad is None else p.grad for p in (table.logprobs, table.entropies)
        )
        self.metrics = self.sums.metrics()


def batch_of(seed: int) -> tuple[RolloutRows, np.ndarray]:
    """Prompts, turns of an environment, failed rows, rows of one token and without a sampled one."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, int(random.integers(1, 10)))
    count = int(lengths.sum())
    valid = random.random(len(lengths)) > 0.2
    rows = RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        token_ids=random.integers(0, 5, count).astype(np.int32),
        token_origin=random.choice([0, 1, 1, 1, 2], count).astype(np.uint8),
        rollout_logprobs=(-0.5 - np.arange(count) / 64).astype(np.float32),
        token_steps=random.integers(0, STEP + 1, count),
        group=np.arange(len(lengths)),
        sample_index=np.zeros(len(lengths), np.int64),
        rewards=np.zeros(len(lengths)),
        valid=valid,
    )
    return rows, np.where(valid, random.normal(0, 1, len(lengths)).astype(np.float32), 0.0)


def tokens_by_row(rows: RolloutRows) -> list[list[int]]:
    mask, row_of = loss_mask(rows), row_of_token(rows)
    return [[int(t) for t in np.flatnonzero(mask & (row_of == row))] for row in range(rows.num_rows)]


def raised(values: list[float], level: str) -> list[float]:
    """Each token's value at a level."""
    if level == "token":
        return values
    total = math.fsum(values)
    return [total if level == "sequence" else total / len(values)] * len(values)


def slow_weight(ratio: float, correction: str) -> tuple[float, bool]:
    """(weight, whether a bound decided it)."""
    if correction == "none":
        return 1.0, False
    if correction == "tis":
        return min(ratio, CAP), ratio > CAP
    outside = ratio > CAP or (correction == "icepop" and ratio < LOW)
    return 0.0 if outside else ratio, outside


def slow_measures(distances: list[float], measure: str, level: str) -> list[float]:
    if measure == "ratio":
        return [math.exp(value) for value in raised(distances, level)]
    of_token = {"k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - 1 - d}[measure]
    return raised([of_token(d) for d in distances], level)


class Slow:
    """The same in plain floats: weights, what is truncated and rejected, loss and gradients, by token."""

    def __init__(self, rows: RolloutRows, advantages: np.ndarray, seed: int, algorithm: AlgorithmConfig) -> None:
        table = Table(rows, seed)
        current = table.logprobs.detach().tolist()
        self.weight: dict[int, float] = {}
        self.truncated: dict[int, bool] = {}
        self.rejected: dict[int, bool] = {}
        for tokens in tokens_by_row(rows):
            if tokens:
                distances = [current[t] - float(rows.rollout_logprobs[t]) for t in tokens]
                self._weigh(tokens, distances, algorithm)
        count = max(sum(map(len, tokens_by_row(rows))), 1)
        entropies = table.entropies.detach().tolist()
        self.logprobs, self.entropies, losses = [0.0] * len(current), [0.0] * len(current), []
        for row, tokens in enumerate(tokens_by_row(rows)):
            for t in tokens:
                pushed = -self.weight[t] * advantages[row]
                self.logprobs[t] = pushed / count
                self.entropies[t] = -algorithm.entropy_coef / count
                losses.append((pushed - algorithm.entropy_coef * entropies[t]) / count)
        self.loss = math.fsum(losses)

    def _weigh(self, tokens: list[int], distances: list[float], algorithm: AlgorithmConfig) -> None:
        ratios = [math.exp(value) for value in raised(distances, algorithm.correction_level)]
        rejection = algorithm.rejection
        measured = [0.0] * len(tokens)
        if rejection.measure != "none":
            measured = slow_measures(distances, rejection.measure, rejection.level)
        for t, ratio, value in zip(tokens, ratios, measured, strict=True):
            weight, self.truncated[t] = slow_weight(ratio, algorithm.correction)
            below = rejection.low is not None and value < rejection.low
            self.rejected[t] = below or (rejection.high is not None and value > rejection.high)
            self.weight[t] = 0.0 if self.rejected[t] else weight


def algorithm_of(**changed: object) -> AlgorithmConfig:
    """PPO around the policy before the step, so that the ratio is 1 and the weight is all of the way."""
    return AlgorithmConfig(**{"proximal": "recompute", "tis_cap": CAP, "correction_low": LOW, **changed})


def objective_of(algorithm: AlgorithmConfig, **more: object) -> Objective:
    return partial(policy_loss, algorithm=algorithm, temperature=1.0, **more)


CASES = [
    *({"correction": name, "correction_level": level} for name in sorted(CORRECTIONS) for level in LEVELS),
    *(
        {"rejection": RejectionConfig(measure=name, level=level, low=BOUNDS[name][0], high=BOUNDS[name][1])}
        for name in REJECTIONS
        for level in LEVELS
    ),
    {"entropy_coef": 0.3},
    {"correction": "mis", "rejection": RejectionConfig(measure="k2", level="geometric", high=0.1), "entropy_coef": 0.1},
]


@pytest.mark.parametrize("changed", CASES, ids=str)
def test_the_loss_is_that_of_one_token_at_a_time_however_the_batch_is_cut(changed: dict[str, object]) -> None:
    algorithm = algorithm_of(**changed)
    for seed in range(6):
        rows, advantages = batch_of(seed)
        expected = Slow(rows, advantages, seed, algorithm)
        for parts in ((4096,), (8,), (8, 30), (10, 9, 4096)):
            got = Ran(objective_of(algorithm), rows, advantages, seed, *parts)
            assert got.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-7)
            np.testing.assert_allclose(got.logprobs.numpy(), expected.logprobs, rtol=1e-5, atol=1e-8)
            np.testing.assert_allclose(got.entropies.numpy(), expected.entropies, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"clip_cov", "kl_cov"}))
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_no_loss_but_those_by_covariance_depends_on_the_cut(name: str, aggregation: str) -> None:
    level = "geometric" if name == "gmpo" else "token"
    proximal = "recompute" if name in WITHOUT_RATIO else "rollout"
    algorithm = algorithm_of(loss=name, aggregation=aggregation, proximal=proximal, correction_level=level, horizon=9)
    for seed in range(5):
        rows, advantages = batch_of(seed)
        objective = objective_of(algorithm, reference=Table(rows, seed + 1))
        whole = Ran(objective, rows, advantages, seed, 4096)
        for parts in ((8,), (8, 30), (10, 9, 4096)):
            got = Ran(objective, rows, advantages, seed, *parts)
            assert got.loss == pytest.approx(whole.loss, rel=1e-6, abs=1e-9)
            torch.testing.assert_close(got.logprobs, whole.logprobs, rtol=1e-6, atol=1e-10)
            assert got.metrics == pytest.approx(whole.metrics, rel=1e-9, abs=1e-12)


def test_those_by_covariance_depend_on_it_as_their_docs_say() -> None:
    algorithm = algorithm_of(loss="kl_cov", proximal="rollout", cov_share=0.2)
    rows, advantages = batch_of(4)
    whole, cut = (Ran(objective_of(algorithm), rows, advantages, 4, budget) for budget in (4096, 8))
    assert not torch.allclose(whole.logprobs, cut.logprobs)


def test_a_row_is_never_split_over_packs() -> None:
    for seed, budget in itertools.product(range(20), (8, 13, 30)):
        rows, advantages = batch_of(seed)
        packs = pack(rows, advantages, budget)
        held = [set(packed.rows.tolist()) for packed in packs]
        assert sum(map(len, held)) == len(set().union(*held))
        for packed in packs:
            index, counts = torch.unique_consecutive(packed.rows, return_counts=True)
            assert counts.tolist() == row_targets(rows)[index.numpy()].tolist()
            assert torch.equal(packed.row_tokens, counts.repeat_interleave(counts).float())


def test_the_sapo_of_one_aggregation_is_not_that_of_another() -> None:
    """verl's always takes seq_mean_token_mean."""
    rows, advantages = batch_of(1)
    losses = [
        Ran(objective_of(algorithm_of(loss="sapo", proximal="rollout", aggregation=name)), rows, advantages, 1, 99).loss
        for name in ("token_mean", "seq_mean_token_mean")
    ]
    assert losses[0] != pytest.approx(losses[1])


@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
def test_metrics_tell_weights_and_rejections_by_age(correction: str) -> None:
    rejection = RejectionConfig(measure="ratio", low=0.6, high=1.6)
    algorithm = algorithm_of(correction=correction, rejection=rejection)
    for seed in range(5):
        rows, advantages = batch_of(seed)
        expected, metrics = (
            Slow(rows, advantages, seed, algorithm),
            Ran(objective_of(algorithm), rows, advantages, seed, 9, 30).metrics,
        )
        tokens = sorted(expected.weight)
        weights = [expected.weight[t] for t in tokens]
        ages = {t: min(STEP - int(rows.token_steps[t]), LAGS - 1) for t in tokens}
        for age in range(LAGS):
            of_age = [t for t in tokens if ages[t] == age]
            name = f"correction/lag_{age}" + ("_up" if age == LAGS - 1 else "")
            assert (f"{name}/tokens" in metrics) == bool(of_age)
            if of_age:
                assert metrics[f"{name}/tokens"] == len(of_age)
                mean = math.fsum(expected.weight[t] for t in of_age) / len(of_age)
                assert metrics[f"{name}/weight_mean"] == pytest.approx(mean, rel=1e-5)
                share = sum(expected.truncated[t] for t in of_age) / len(of_age)
                assert metrics[f"{name}/truncated"] == pytest.approx(share)
                assert metrics[f"{name}/rejected"] == pytest.approx(
                    sum(expected.rejected[t] for t in of_age) / len(of_age)
                )
        if tokens:
            squares = math.fsum(w * w for w in weights)
            worth = math.fsum(weights) ** 2 / (len(tokens) * squares) if squares else 0.0
            assert metrics["correction/effective_share"] == pytest.approx(worth, rel=1e-5)
            assert metrics["correction/rejected"] == pytest.approx(sum(expected.rejected.values()) / len(tokens))


def test_without_correction_all_tokens_count() -> None:
    rows, advantages = batch_of(2)
    metrics = Ran(objective_of(algorithm_of(correction="none")), rows, advantages, 2, 30).metrics
    assert metrics["correction/effective_share"] == 1.0
    assert (metrics["correction/truncated"], metrics["correction/rejected"]) == (0.0, 0.0)


def one_pair(name: str, level: str = "token") -> list[float]:
    """The measure of a token that is three times as likely to the trainer, and of one that is a third."""
    current = torch.log(torch.tensor([0.3, 0.1], dtype=torch.float64))
    return REJECTIONS[name](current, current.flip(0), level, torch.tensor([2])).tolist()


def test_the_bounds_of_k1_are_of_rollout_over_trainer_and_those_of_the_ratio_of_trainer_over_rollout() -> None:
    assert one_pair("ratio") == pytest.approx([3.0, 1 / 3])
    assert one_pair("k1") == pytest.approx([-math.log(3), math.log(3)])
    rollout, proximal = torch.log(torch.tensor([0.1, 0.3])), torch.log(torch.tensor([0.3, 0.1]))
    weights, outside = CORRECTIONS["icepop"](importance(proximal, rollout), 2.0, 0.2)
    torch.testing.assert_close(weights, torch.tensor([0.0, 1 / 3]))
    assert outside.tolist() == [True, False]


def test_of_a_row_k1_cancels_out_and_k2_and_k3_do_not() -> None:
    for level in ("sequence", "geometric"):
        assert one_pair("k1", level) == pytest.approx([0.0, 0.0], abs=1e-12)
        assert one_pair("ratio", level) == pytest.approx([1.0, 1.0])
        assert min(one_pair("k2", level) + one_pair("k3", level)) > 0.3


def test_a_rejected_token_stays_in_the_denominator() -> None:
    rows, advantages = batch_of(0)
    seen = []
    for high in (1e9, 1e-9):
        algorithm = algorithm_of(rejection=RejectionConfig(measure="ratio", low=0.0, high=high), correction="none")
        seen.append(Ran(objective_of(algorithm), rows, advantages, 0, 4096))
    assert seen[0].metrics["correction/rejected"] == 0.0
    assert (seen[1].metrics["correction/rejected"], seen[1].loss) == (1.0, 0.0)
    per_token = np.repeat(advantages, rows.lengths())[loss_mask(rows)]
    assert seen[0].loss == pytest.approx(-per_token.sum() / count_targets(rows).tokens, rel=1e-5)


def test_a_weight_of_a_long_row_is_finite() -> None:
    lengths = torch.tensor([5000])
    proximal, rollout = torch.full((5000,), -1.0), torch.full((5000,), -1.5)
    for name in ("tis", "icepop", "mis"):
        weights, _ = CORRECTIONS[name](importance(proximal, rollout, "sequence", lengths), 1e12, 0.0)
        torch.testing.assert_close(weights, torch.full((5000,), math.exp(20.0)))


# ---- divergence from a reference


def slow_divergence(name: str, d: float) -> tuple[float, float]:
    """(value, slope by the log-prob)."""
    value = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[name.removesuffix("+")]
    slope = {"k1": 1.0, "k2": d, "k3": 1 - math.exp(-d)}[name] if name in ("k1", "k2", "k3") else d
    return value, slope


@pytest.mark.parametrize("name", ["k1", *DIVERGENCES])
def test_estimates_of_the_divergence_and_their_gradients(name: str) -> None:
    for seed in range(5):
        print(f"seed {seed}")
        generator = torch.Generator().manual_seed(seed)
        logprobs, reference = -3 * torch.rand(2, 40, generator=generator, dtype=torch.float64)
        logprobs.requires_grad_()
        values = (k1 if name == "k1" else DIVERGENCES[name])(logprobs, reference)
        values.sum().backward()
        distances = (logprobs.detach() - reference).tolist()
        assert values.tolist() == pytest.approx([slow_divergence(name, d)[0] for d in distances], abs=1e-12)
        assert logprobs.grad.tolist() == pytest.approx([slow_divergence(name, d)[1] for d in distances], abs=1e-12)


def test_a_limit_of_k3_takes_its_gradient_away_where_it_is_needed_most() -> None:
    reference = torch.tensor([-1.0])
    for estimate, limit, expected in ((k3, 10.0, 0.0), (k3, None, 1 - math.exp(5.0)), (k3_straight, 10.0, -5.0)):
        logprobs = torch.tensor([-6.0], requires_grad=True)
        value = estimate(logprobs, reference, limit=limit)
        value.sum().backward()
        assert logprobs.grad.item() == pytest.approx(expected, rel=1e-5)
        assert value.item() == pytest.approx(10.0 if limit else math.exp(5.0) - 6.0, rel=1e-5)


def test_the_gradients_that_the_estimates_have_in_expectation() -> None:
    """Over all tokens of a small vocabulary: of k1 none, of k2 that of KL(trained || reference), of k3 another."""
    generator = torch.Generator().manual_seed(3)
    logits, reference = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    logits, reference = logits.requires_grad_(), reference.log_softmax(0)
    exact = torch.autograd.grad(_kl(logits.log_softmax(0), reference), logits)[0]
    found = {}
    for name, estimate in {"k1": k1, "k2": k2, "k3": k3, "k1+": DIVERGENCES["k1+"], "k3+": DIVERGENCES["k3+"]}.items():
        logprobs = logits.log_softmax(0)
        found[name] = torch.autograd.grad((logprobs.detach().exp() * estimate(logprobs, reference)).sum(), logits)[0]
    torch.testing.assert_close(found["k1"], torch.zeros(6, dtype=torch.float64))
    for name in ("k2", "k1+", "k3+"):
        torch.testing.assert_close(found[name], exact)
    assert not torch.allclose(found["k3"], exact, rtol=0.05)


def _kl(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (logprobs.exp() * (logprobs - reference)).sum()


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_the_divergence_is_a_term_of_the_loss_and_a_metric(name: str) -> None:
    for seed in range(3):
        rows, advantages = batch_of(seed)
        reference = Table(rows, seed + 50)
        algorithm = algorithm_of(correction="none", kl_coef=0.25, kl_estimator=name)
        plain = Ran(objective_of(algorithm_of(correction="none")), rows, advantages, seed, 8)
        got = Ran(objective_of(algorithm, reference=reference), rows, advantages, seed, 8, 9)
        assert "loss/kl" not in plain.metrics
        tokens = [t for row in tokens_by_row(rows) for t in row]
        table = Table(rows, seed).logprobs.detach() - reference.logprobs.detach()
        judged = {t: slow_divergence(name, table[t].item()) for t in tokens}
        count = max(len(tokens), 1)
        mean = math.fsum(value for value, _ in judged.values()) / count
        assert got.loss - plain.loss == pytest.approx(0.25 * mean, rel=1e-6, abs=1e-9)
        assert got.metrics.get("loss/kl", 0.0) == pytest.approx(mean)
        for t, (_, slope) in judged.items():
            assert (got.logprobs[t] - plain.logprobs[t]).item() == pytest.approx(
                0.25 * slope / count, rel=1e-6, abs=1e-9
            )
        assert reference.logprobs.grad is None


def test_rows_without_advantage_count_as_soon_as_the_loss_has_another_term() -> None:
    assert algorithm_of().learns_from_advantages_alone
    assert not algorithm_of(entropy_coef=1e-3).learns_from_advantages_alone
    assert not algorithm_of(kl_coef=1e-3).learns_from_advantages_alone


def test_the_names_of_the_configuration_are_those_of_the_tables() -> None:
    names = {leaf.name.removeprefix("learner.algorithm."): sorted(literals(leaf.type)) for leaf in leaves()}
    assert names["correction"] == sorted(CORRECTIONS)
    assert names["correction_level"] == names["rejection.level"] == sorted(LEVELS)
    assert names["rejection.measure"] == sorted([*REJECTIONS, "none"])
    assert names["kl_estimator"] == sorted({**DIVERGENCES, **REWARD_DIVERGENCES})
    assert set(RULED_ROW_LOSSES) == ROW_LOSSES
    assert set(RULED_TEACHER_LOSSES) == TEACHER_LOSSES


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_has_a_configuration_that_no_rule_forbids(name: str, tmp_path: Path) -> None:
    reference = ReferenceConfig()
    if name in TEACHER_LOSSES:
        teacher = prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "teacher")
        reference = ReferenceConfig(kind="path", path=str(teacher))
    algorithm = AlgorithmConfig(
        loss=name,
        advantage="reinforce_pp",
        reference=reference,
        proximal="recompute" if name in WITHOUT_RATIO else "rollout",
        correction="icepop",
        correction_level="geometric",
        rejection=RejectionConfig(measure="k2", level="sequence", high=1.0),
    )
    alone = Config(rollout=RolloutConfig(group_size=1), learner=LearnerConfig(algorithm=algorithm))
    assert [problem for rule in ALGORITHM_RULES for problem in rule(alone)] == []


def test_denominators_of_a_batch_without_a_token_do_no_harm() -> None:
    rows, advantages = batch_of(0)
    nothing = select_rows(rows, np.zeros(0, np.int64))
    assert count_targets(nothing) == Denominators(0, 0)
    assert Ran(objective_of(algorithm_of()), nothing, advantages[:0], 0, 8).loss == 0.0
