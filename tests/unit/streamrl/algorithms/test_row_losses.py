"""Every further loss against one token at a time in plain floats: values, gradients and clipped tokens, over random
ragged batches; and the places where the peers differ, or err."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch

from streamrl.algorithms.losses import LOSS_SETTINGS, LOSSES, ROW_LOSSES, TEACHER_LOSSES
from streamrl.algorithms.losses.clipped import cispo, ppo
from streamrl.algorithms.losses.covariance import clip_cov, covariances, kl_cov
from streamrl.algorithms.losses.masked import dppo
from streamrl.algorithms.losses.sequence import gmpo, gspo
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.fields import leaves, literals

SEEDS = range(8)
LOW, HIGH = 0.2, 0.28
CHOSEN = {
    "clip_low": LOW,
    "clip_high": HIGH,
    "dual_clip": 1.6,
    "sapo_tau_positive": 1.0,
    "sapo_tau_negative": 1.05,
    "divergence": "tv",
    "cov_share": 0.2,
    "cov_low": 0.05,
    "cov_high": 0.8,
    "cov_kl": 0.7,
}


class Token(NamedTuple):
    logprob: float
    proximal: float
    advantage: float
    weight: float

    @property
    def distance(self) -> float:
        return self.logprob - self.proximal

    @property
    def ratio(self) -> float:
        return math.exp(min(max(self.distance, -20.0), 20.0))

    @property
    def slope(self) -> float:
        """Of the ratio, by the log-prob."""
        return self.ratio if abs(self.distance) <= 20.0 else 0.0


class ScoredTokens(NamedTuple):
    """loss, its part of the gradient of the SUM of all losses, and whether it is clipped, for each token."""

    loss: list[float]
    slope: list[float]
    clipped: list[bool]


Rows = list[list[Token]]


def ragged(seed: int, *, per_row: bool = False) -> Rows:
    """Rows of 1 to 9 tokens; some advantages are 0, one distance is beyond what `exp` is given."""
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()

    rows = []
    for _ in range(int(uniform(1, 7))):
        of_row = uniform(-2, 2), uniform(0, 2)
        row = []
        for _ in range(int(uniform(1, 10))):
            proximal = uniform(-4, -0.1)
            advantage, weight = of_row if per_row else (uniform(-2, 2) * (uniform(0, 1) > 0.1), uniform(0, 2))
            row.append(Token(min(proximal + uniform(-0.8, 0.8), -1e-3), proximal, advantage, weight))
        rows.append(row)
    rows.append([Token(-1.0, -24.0, 1.0 if per_row else 0.5, 1.0)])
    return rows


def columns(rows: Rows) -> tuple[list[torch.Tensor], torch.Tensor]:
    tokens = [token for row in rows for token in row]
    values = [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]
    values[0].requires_grad_()
    return values, torch.tensor([len(row) for row in rows])


def settings_of(name: str, lengths_R: torch.Tensor) -> dict[str, object]:
    """What the loss takes by name."""
    chosen: dict[str, object] = {key: CHOSEN[key] for key in LOSS_SETTINGS[name]}
    if name in TEACHER_LOSSES:
        chosen["teacher_T"] = torch.full((int(lengths_R.sum()),), -1.5, dtype=torch.float64)
    return chosen | ({"lengths_R": lengths_R} if name in ROW_LOSSES else {})


def check(
    loss: Callable[..., tuple[torch.Tensor, torch.Tensor]], rows: Rows, expected: ScoredTokens, **chosen: object
) -> None:
    values, _ = columns(rows)
    got, clipped = loss(*values, **chosen)
    got.sum().backward()
    exact = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(got.detach(), torch.tensor(expected.loss, dtype=torch.float64), **exact)
    torch.testing.assert_close(values[0].grad, torch.tensor(expected.slope, dtype=torch.float64), **exact)
    assert clipped.tolist() == expected.clipped
    assert not clipped.requires_grad


def bound(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def one_by_one(rows: Rows, judge: Callable[[Token], tuple[float, float, bool]]) -> ScoredTokens:
    judged = [judge(token) for row in rows for token in row]
    return ScoredTokens(*(list(column) for column in zip(*judged, strict=True)))


def slow_ppo(token: Token, dual: float | None) -> tuple[float, float, bool]:
    plain = -token.advantage * token.ratio
    bounded = -token.advantage * bound(token.ratio, 1 - LOW, 1 + HIGH)
    loss, clipped = max(plain, bounded), bounded > plain
    if dual is not None and token.advantage < 0 and loss > -token.advantage * dual:
        loss, clipped = -token.advantage * dual, True
    return token.weight * loss, 0.0 if clipped else -token.weight * token.advantage * token.slope, clipped


@pytest.mark.parametrize("dual", [None, 1.6])
@pytest.mark.parametrize("seed", SEEDS)
def test_ppo_with_and_without_dual_clip(seed: int, dual: float | None) -> None:
    rows = ragged(seed)
    expected = one_by_one(rows, lambda token: slow_ppo(token, dual))
    check(ppo, rows, expected, clip_low=LOW, clip_high=HIGH, dual_clip=dual)


def test_dual_clip_is_off_unless_asked_for_and_is_the_bound_that_trl_has_on_the_plain_ratio() -> None:
    for seed in SEEDS:
        (logprobs, proximal, advantages, weights), _ = columns(ragged(seed))
        off = ppo(logprobs, proximal, advantages, weights, LOW, HIGH)[0]
        assert torch.equal(off, ppo(logprobs, proximal, advantages, weights, LOW, HIGH, None)[0])
        ratio = (logprobs - proximal).clamp(-20, 20).exp()
        capped = torch.maximum(-advantages * ratio.clamp(max=3.0), -advantages * ratio.clamp(1 - LOW, 1 + HIGH))
        torch.testing.assert_close(ppo(logprobs, proximal, advantages, weights, LOW, HIGH, 3.0)[0], weights * capped)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_bounds_the_weight_and_keeps_every_gradient(seed: int, absolute: bool) -> None:
    rows, bounds = ragged(seed), (0.0, HIGH) if absolute else (1 - LOW, 1 + HIGH)

    def judge(token: Token) -> tuple[float, float, bool]:
        slope = -token.weight * token.advantage * bound(token.ratio, *bounds)
        return slope * token.logprob, slope, bound(token.ratio, *bounds) != token.ratio

    check(cispo, rows, one_by_one(rows, judge), clip_low=LOW, clip_high=HIGH, absolute=absolute)


@pytest.mark.parametrize("seed", SEEDS)
def test_sapo_fades_by_a_sigmoid(seed: int) -> None:
    def judge(token: Token) -> tuple[float, float, bool]:
        tau = 1.0 if token.advantage > 0 else 1.05
        gate = 1.0 / (1.0 + math.exp(-tau * (token.ratio - 1.0))) if token.ratio < 700 else 1.0
        pushed = -token.weight * token.advantage
        return pushed * 4.0 / tau * gate, pushed * 4.0 * gate * (1.0 - gate) * token.slope, False

    rows = ragged(seed)
    check(LOSSES["sapo"], rows, one_by_one(rows, judge), sapo_tau_positive=1.0, sapo_tau_negative=1.05)


def test_sapo_has_the_gradient_of_the_ratio_at_1() -> None:
    logprobs, advantages = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([2.0, -3.0])
    LOSSES["sapo"](logprobs, logprobs.detach(), advantages, torch.ones(2), 1.0, 1.05)[0].sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dppo_masks_what_moved_too_far_in_the_direction_it_is_pushed(seed: int, divergence: str) -> None:
    low, high = (0.1, 0.15) if divergence == "tv" else (0.02, 0.03)

    def judge(token: Token) -> tuple[float, float, bool]:
        p, q = math.exp(token.logprob), math.exp(token.proximal)
        if divergence == "tv":
            up, down = p - q > high, p - q < -low
        else:
            kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
            up, down = kl > high and p > q, kl > low and p < q
        masked = up if token.advantage > 0 else down
        slope = 0.0 if masked else -token.weight * token.advantage * min(token.ratio, 20.0)
        return slope * token.logprob, slope, masked

    rows = ragged(seed)
    check(dppo, rows, one_by_one(rows, judge), clip_low=low, clip_high=high, divergence=divergence)


def test_dppo_lets_rare_tokens_move_that_a_bound_of_the_ratio_would_stop() -> None:
    logprobs, proximal = torch.log(torch.tensor([1e-3, 0.9])), torch.log(torch.tensor([1e-4, 0.6]))
    ones = torch.ones(2)
    assert ppo(logprobs, proximal, ones, ones, LOW, HIGH)[1].tolist() == [True, True]
    assert dppo(logprobs, proximal, ones, ones, LOW, LOW)[1].tolist() == [False, True]


def test_dppo_of_a_certain_token_is_finite() -> None:
    logprobs = torch.tensor([0.0, -1e-9, -2.0], requires_grad=True)
    for divergence in ("tv", "kl"):
        loss, _ = dppo(logprobs, torch.tensor([-1e-9, 0.0, 0.0]), -torch.ones(3), torch.ones(3), 0.2, 0.2, divergence)
        assert torch.isfinite(loss).all()


@pytest.mark.parametrize("through_mean", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_has_one_ratio_for_each_row(seed: int, through_mean: bool) -> None:
    rows, loss, slope, clipped = ragged(seed), [], [], []
    for row in rows:
        mean = math.fsum(token.distance for token in row) / len(row)
        ratio = math.exp(min(mean, 10.0))
        slopes = []
        for token in row:
            plain, bounded = -token.advantage * ratio, -token.advantage * bound(ratio, 1 - LOW, 1 + HIGH)
            loss.append(token.weight * max(plain, bounded))
            clipped.append(bounded > plain)
            slopes.append(0.0 if clipped[-1] or mean > 10.0 else -token.weight * token.advantage * ratio)
        slope += [math.fsum(slopes) / len(row)] * len(row) if through_mean else slopes
    lengths_R = columns(rows)[1]
    chosen = {"clip_low": LOW, "clip_high": HIGH, "lengths_R": lengths_R, "through_mean": through_mean}
    check(gspo, rows, ScoredTokens(loss, slope, clipped), **chosen)


def gradient(rows: Rows, scale: list[float], **chosen: object) -> torch.Tensor:
    values, lengths_R = columns(rows)
    loss, _ = gspo(*values, LOW, HIGH, lengths_R=lengths_R, **chosen)
    (loss * torch.tensor(scale, dtype=torch.float64)).sum().backward()
    return values[0].grad


def test_the_two_forms_of_gspo_have_one_gradient_for_advantages_of_rows_under_row_means_and_for_nothing_else() -> None:
    for seed in SEEDS:
        rows, mixed = ragged(seed, per_row=True), ragged(seed)
        means = [1.0 / len(row) for row in rows for _ in row]
        torch.testing.assert_close(gradient(rows, means), gradient(rows, means, through_mean=True))
        means = [1.0 / len(row) for row in mixed for _ in row]
        assert not torch.allclose(gradient(mixed, means), gradient(mixed, means, through_mean=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_gmpo_is_the_geometric_mean_of_bounded_ratios(seed: int) -> None:
    rows, loss, slope, clipped = ragged(seed), [], [], []
    for row in rows:
        logs = [bound(token.distance, -20.0, 20.0) for token in row]
        limits = [min(d, HIGH) if t.advantage > 0 else max(d, -LOW) for d, t in zip(logs, row, strict=True)]
        ratio = math.exp(math.fsum(limits) / len(row))
        loss += [-token.weight * token.advantage * ratio for token in row]
        clipped += [a != b for a, b in zip(limits, logs, strict=True)]
        each = math.fsum(-token.weight * token.advantage * ratio for token in row) / len(row)
        slope += [each if a == b and abs(t.distance) <= 20 else 0.0 for a, b, t in zip(limits, logs, row, strict=True)]
    lengths_R = columns(rows)[1]
    check(gmpo, rows, ScoredTokens(loss, slope, clipped), clip_low=LOW, clip_high=HIGH, lengths_R=lengths_R)


def test_the_bounds_of_gmpo_are_of_the_log_of_the_ratio() -> None:
    logprobs, one = torch.tensor([0.39, 0.41]), torch.ones(2)
    loss, clipped = gmpo(logprobs, torch.zeros(2), one, one, 0.4, 0.4, lengths_R=torch.tensor([1, 1]))
    assert clipped.tolist() == [False, True]
    torch.testing.assert_close(loss, -torch.tensor([0.39, 0.4]).exp())


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_cov_leaves_out_some_of_the_tokens_in_the_band(seed: int) -> None:
    rows = ragged(seed)
    expected = one_by_one(rows, lambda token: slow_ppo(token, None))
    tokens = [token for row in rows for token in row]
    mean_logprob = math.fsum(token.logprob for token in tokens) / len(tokens)
    mean_advantage = math.fsum(token.advantage for token in tokens) / len(tokens)
    fit = [
        i
        for i, token in enumerate(tokens)
        if 0.05 < (token.logprob - mean_logprob) * (token.advantage - mean_advantage) < 0.8 and not expected.clipped[i]
    ]
    count = min(max(int(0.2 * len(tokens)), 1), len(fit))
    for k in range(count):
        place = fit[k * len(fit) // count]
        expected.loss[place], expected.slope[place], expected.clipped[place] = 0.0, 0.0, True
    check(clip_cov, rows, expected, **settings_of("clip_cov", torch.zeros(0)))


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_cov_adds_a_price_to_the_tokens_of_largest_covariance(seed: int) -> None:
    rows = ragged(seed)
    tokens = [token for row in rows for token in row]
    mean_logprob = math.fsum(token.logprob for token in tokens) / len(tokens)
    mean_advantage = math.fsum(token.advantage for token in tokens) / len(tokens)
    covs = [(token.logprob - mean_logprob) * (token.advantage - mean_advantage) for token in tokens]
    chosen = sorted(range(len(tokens)), key=lambda i: -covs[i])[: max(int(0.2 * len(tokens)), 1)]
    loss, slope = [], []
    for place, token in enumerate(tokens):
        price = 0.7 if place in chosen else 0.0
        loss.append(token.weight * (-token.advantage * token.ratio + price * abs(token.distance)))
        sign = math.copysign(1.0, token.distance)
        slope.append(token.weight * (-token.advantage * token.slope + price * sign))
    check(kl_cov, rows, ScoredTokens(loss, slope, [False] * len(tokens)), **settings_of("kl_cov", torch.zeros(0)))


def test_clip_cov_chooses_the_same_tokens_again() -> None:
    (logprobs, *rest), _ = columns(ragged(3))
    found = {tuple(clip_cov(logprobs, *rest, 0.2, 0.28, 0.5, 0.0, 9.0)[1].tolist()) for _ in range(5)}
    assert len(found) == 1


def test_covariances_of_a_part_are_not_those_of_the_whole() -> None:
    """Why both losses depend on how a batch is cut, and say so."""
    (logprobs, _, advantages, _), _ = columns(ragged(1))
    half = len(logprobs) // 2
    assert not torch.allclose(covariances(logprobs, advantages)[:half], covariances(logprobs[:half], advantages[:half]))


@pytest.mark.parametrize("seed", SEEDS)
def test_opd_is_the_distance_from_the_teacher_and_pushes_towards_it(seed: int) -> None:
    rows = ragged(seed)
    generator = torch.Generator().manual_seed(100 + seed)
    teacher = -3.0 * torch.rand(sum(map(len, rows)), generator=generator, dtype=torch.float64)
    of_token = iter(teacher.tolist())

    def judge(token: Token) -> tuple[float, float, bool]:
        distance = token.weight * (token.logprob - next(of_token))
        return distance, distance, False

    check(LOSSES["opd"], rows, one_by_one(rows, judge), teacher_T=teacher)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_batch_without_a_token_is_no_error(name: str) -> None:
    nothing = torch.zeros(0, requires_grad=True)
    loss, clipped = LOSSES[name](
        nothing, *(torch.zeros(0) for _ in range(3)), **settings_of(name, torch.zeros(0, dtype=torch.int64))
    )
    loss.sum().backward()
    assert (loss.tolist(), clipped.tolist()) == ([], [])


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"kl_cov"} - TEACHER_LOSSES))
def test_a_row_without_advantage_has_exactly_no_gradient(name: str) -> None:
    """So it need not be computed. The price of `kl_cov` is no advantage's, and is paid only in rows that have one."""
    rows = [[token._replace(advantage=0.0) for token in row] for row in ragged(5)]
    values, lengths_R = columns(rows)
    LOSSES[name](*values, **settings_of(name, lengths_R))[0].sum().backward()
    assert (values[0].grad == 0.0).all()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_weight_of_zero_takes_a_token_out(name: str) -> None:
    rows = [[token._replace(weight=0.0) for token in row] for row in ragged(6)]
    values, lengths_R = columns(rows)
    loss, _ = LOSSES[name](*values, **settings_of(name, lengths_R))
    loss.sum().backward()
    assert (loss == 0.0).all()
    assert (values[0].grad == 0.0).all()


@pytest.mark.parametrize("name", sorted(ROW_LOSSES))
def test_a_row_loss_is_the_same_whatever_rows_stand_beside_it(name: str) -> None:
    rows = ragged(2)
    values, lengths_R = columns(rows)
    loss = partial(LOSSES[name], clip_low=LOW, clip_high=HIGH)
    whole = loss(*values, lengths_R=lengths_R)[0]
    alone = [loss(*columns([row])[0], lengths_R=torch.tensor([len(row)]))[0] for row in rows]
    assert torch.equal(whole, torch.cat(alone))


def test_losses_can_be_configured_and_take_keys_that_are_there() -> None:
    (leaf,) = (leaf for leaf in leaves() if leaf.name == "learner.algorithm.loss")
    assert sorted(literals(leaf.type)) == sorted(LOSSES) == sorted(LOSS_SETTINGS)
    for name, keys in LOSS_SETTINGS.items():
        takes = inspect.signature(LOSSES[name]).parameters
        assert set(keys) <= set(takes) & set(AlgorithmConfig.__struct_fields__)
        assert ("lengths_R" in takes) == (name in ROW_LOSSES)
        assert ("teacher_T" in takes) == (name in TEACHER_LOSSES)
