"""The policy that the trained one is held to: a moving average, a price in the reward, a teacher."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.learner.small_policy import make_model, make_rows

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import DataError
from streamrl.learner.auxiliary.kl_penalty import row_divergences
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, loss_mask
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, build
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.references.frozen import FrozenPolicy

SEEDS = range(5)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


# ---- a moving average


def averaged_backend(group: LearnerGroup, *, every: int = 2, decay: float = 0.7) -> tuple[FsdpBackend, AveragedPolicy]:
    average = AveragedPolicy(make_model, group, torch.float32, every=every, decay=decay)
    backend = build(
        make_model(),
        optimizer=OptimizerConfig(lr=1e-2, warmup_steps=0),
        algorithm=AlgorithmConfig(kl_coef=0.3),
        total_steps=20,
        temperature=1.0,
        group=group,
        reference=average,
        average=average,
    )
    return backend, average


def one_step(backend: FsdpBackend) -> dict[str, float]:
    rows = make_rows(seed=backend.steps_done)
    return backend.step(pack(rows, rows.rewards, 32), count_targets(rows))


def test_the_average_is_that_of_a_loop_over_the_weights_of_each_step_in_double_precision(group: LearnerGroup) -> None:
    backend, average = averaged_backend(group)
    expected = {name: whole.double().clone() for name, whole in backend.policy.iter_weights()}
    for step in range(1, 7):
        one_step(backend)
        if step % 2 == 0:
            for name, whole in backend.policy.iter_weights():
                expected[name] = 0.7 * expected[name] + 0.3 * whole.double()
    got = dict(average.state_tensors())
    assert sorted(got) == sorted(f"reference/{name}" for name in expected)
    for name, whole in expected.items():
        torch.testing.assert_close(got[f"reference/{name}"].double(), whole, rtol=1e-5, atol=1e-6)
    trained = dict(backend.policy.iter_weights())
    assert any((trained[name].double() - whole).abs().max() > 1e-3 for name, whole in expected.items())


def test_the_average_moves_when_it_is_due_and_is_what_the_loss_is_held_to(group: LearnerGroup) -> None:
    backend, average = averaged_backend(group, every=3, decay=0.0)
    (packed, *_) = pack(make_rows(), np.zeros(8), 4096)
    first = average(packed, 1.0)[0]
    seen = []
    for _ in range(4):
        seen.append((one_step(backend)["loss/kl"], torch.equal(average(packed, 1.0)[0], first)))
    assert [still for _, still in seen] == [True, True, False, False]
    # A decay of 0 made the reference a copy of the policy: the step after that is at no distance from it.
    assert seen[2][0] > 1e-3 > abs(seen[3][0])


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_resumed_learner_has_the_average_and_goes_on_bit_equal(before: int, group: LearnerGroup) -> None:
    backend, _ = averaged_backend(group)
    for _ in range(before):
        one_step(backend)
    tensors = {name: whole.clone() for name, whole in backend.state_tensors()}
    resumed, average = averaged_backend(group)
    resumed.load_state(tensors.__getitem__, backend.state_extra())
    assert {name: tensors[name] for name in tensors if name.startswith("reference/")}.keys() == dict(
        average.state_tensors()
    ).keys()
    for _ in range(3):
        assert one_step(backend)["loss/policy"] == one_step(resumed)["loss/policy"]
    assert weight_digest(backend.state_tensors()) == weight_digest(resumed.state_tensors())


def test_the_state_of_a_learner_without_an_average_is_refused(group: LearnerGroup) -> None:
    plain = build(
        make_model(),
        optimizer=OptimizerConfig(),
        algorithm=AlgorithmConfig(),
        total_steps=9,
        temperature=1.0,
        group=group,
    )
    backend, _ = averaged_backend(group)
    with pytest.raises(DataError, match="no moving average"):
        backend.load_state(dict(plain.state_tensors()).__getitem__, plain.state_extra())


# ---- paid in the reward


@pytest.mark.parametrize("budget", [12, 40, 4096])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_divergence_of_a_row_is_the_sum_over_its_tokens_one_by_one(estimator: str, budget: int) -> None:
    value = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: np.exp(-d) - 1 + d}[estimator]
    for seed in SEEDS:
        print(f"seed {seed}")
        rows = make_rows(rows=9, seed=seed)
        packs = pack(rows, np.zeros(9), budget)
        # A reference that gives each token a log-prob by its id and its row.
        references = [-2.0 - 0.05 * packed.targets.float() - 0.1 * packed.rows.float() for packed in packs]
        mask, expected = loss_mask(rows), np.zeros(9)
        for row in range(9):
            for t in range(rows.offsets[row], rows.offsets[row + 1]):
                if mask[t]:
                    reference = -2.0 - 0.05 * float(rows.token_ids[t]) - 0.1 * row
                    expected[row] += value(float(rows.rollout_logprobs[t]) - reference)
        got = row_divergences(packs, references, estimator, 9)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# ---- a teacher


def test_a_policy_that_is_distilled_comes_closer_to_its_teacher_whatever_the_rewards(group: LearnerGroup) -> None:
    teacher = FrozenPolicy(lambda: make_model(6), group, torch.float32)
    backend = build(
        make_model(),
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=0),
        algorithm=AlgorithmConfig(loss="opd", proximal="recompute", correction="none"),
        total_steps=60,
        temperature=1.0,
        group=group,
        reference=teacher,
    )
    (packed,) = pack(make_rows(rows=24), np.zeros(24), 10**6)
    theirs = teacher(packed, 1.0)[0]
    before = (backend.logprobs([packed])[0] - theirs).abs().mean()
    for _ in range(40):
        rows = make_rows(rows=24)
        metrics = backend.step(pack(rows, np.zeros(24), 10**6), count_targets(rows))
    after = (backend.logprobs([packed])[0] - theirs).abs().mean()
    assert after < 0.5 * before
    assert metrics["loss/kl"] == pytest.approx(metrics["loss/policy"], rel=1e-5)
