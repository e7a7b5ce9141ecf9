"""The choices in the table of `make bench-algorithms`: each has a row, acts on rows of an older policy, and is trained
as the learner trains it."""

import json
import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from algorithm_cases.choices import Acted, choices, config_of, critic, families, without_effect
from algorithm_cases.ragged import Answers, packs, ragged_prompts, rewards_of, rows_of, sample_answers
from algorithm_cases.stale import LAG, Learner, Run, train
from algorithm_cases.task import DIGITS, make_policy
from bench_algorithms import main
from report import Report

from streamrl.algorithms.advantages.estimate import RewardedRows
from streamrl.algorithms.divergences import DIVERGENCES, REWARD_DIVERGENCES
from streamrl.config import Config
from streamrl.config.rules.run import check_rules
from streamrl.config.schema.algorithm import AlgorithmConfig, ReferenceConfig
from streamrl.config.schema.fields import leaves, literals
from streamrl.config.schema.run import ModelConfig
from streamrl.learner.auxiliary.auxiliary import step_of_both
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences, referred
from streamrl.learner.auxiliary.on_fsdp import critic_on_fsdp
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.rows import row_targets
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.fsdp import FsdpBackend, build
from streamrl.learner.model.value_model import ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.models.load import prepare_model_folder
from streamrl.types import RolloutRows

NAMES = {leaf.name.removeprefix("learner.algorithm."): set(literals(leaf.type)) for leaf in leaves()}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path / "store", device=torch.device("cpu"))
    yield group
    group.close()


def configs() -> list[Config]:
    return [config for family in families() for config in family.choices.values()]


def algorithms() -> list[AlgorithmConfig]:
    return [config.learner.algorithm for config in configs()]


# ---- the rows


def test_every_correction_and_every_rejection_has_a_row_at_every_level() -> None:
    corrected = {(one.correction, one.correction_level) for one in algorithms()}
    rejected = {(one.rejection.measure, one.rejection.level) for one in algorithms()}
    assert corrected >= set(product(NAMES["correction"] - {"none"}, NAMES["correction_level"]))
    assert rejected >= set(product(NAMES["rejection.measure"] - {"none"}, NAMES["rejection.level"]))
    assert "none" in {one.correction for one in algorithms()}


def test_every_other_name_has_a_row() -> None:
    for key in ("proximal", "aggregation", "divergence"):
        assert {getattr(one, key) for one in algorithms()} == NAMES[key]
    assert {one.reference.kind for one in algorithms() if one.has_reference} == NAMES["reference.kind"]
    assert {one.kl_estimator for one in algorithms() if one.kl_in_loss} == set(DIVERGENCES)
    assert {one.kl_estimator for one in algorithms() if one.kl_in_rows} == set(REWARD_DIVERGENCES)
    assert any(one.kl_in_reward and one.has_critic for one in algorithms())


def test_every_number_that_is_off_by_default_has_a_row_that_sets_it() -> None:
    assert any(one.entropy_coef for one in algorithms())
    assert any(one.dual_clip for one in algorithms())
    learners = [config.learner for config in configs()]
    assert any(one.critic.length_alpha for one in learners)
    assert any(one.critic.value_lambda < 1.0 for one in learners)
    assert any(one.overlong.buffer for one in learners)
    assert any(one.overlong.mask_truncated for one in learners)
    assert any(one.mini_batches > 1 and one.ppo_epochs > 1 for one in learners)


def test_no_two_rows_have_one_name() -> None:
    named = [name for family in families() for name in family.choices]
    named += [family.acted.name for family in families() if family.acted is not None]
    assert sorted(named) == sorted(set(named))


def test_no_rule_refuses_a_row(tmp_path: Path) -> None:
    model = ModelConfig(preset="tiny-qwen3")
    folder = str(prepare_model_folder(model, 0, tmp_path / "teacher"))
    for config in configs():
        algorithm = config.learner.algorithm
        if algorithm.reference.kind == "path":
            reference = msgspec.structs.replace(algorithm.reference, path=folder)
            algorithm = msgspec.structs.replace(algorithm, reference=reference)
        learner = msgspec.structs.replace(config.learner, algorithm=algorithm)
        assert check_rules(msgspec.structs.replace(config, model=model, learner=learner)) == []


# ---- what shows that a choice acted


def made_run(*rewards: float, distance: float = 0.0) -> Run:
    return Run(list(rewards), [{} for _ in rewards], distance, make_policy(0))


def test_a_choice_whose_runs_are_those_of_another_changed_nothing() -> None:
    same, other = [made_run(0.1, 0.2), made_run(0.1, 0.3)], [made_run(0.1, 0.2), made_run(0.1, 0.31)]
    assert without_effect({"gae": same, "gae, value_lambda": other}) == []
    assert without_effect({"gae": same, "entropy bonus": other, "gae, value_lambda": list(same)}) == [
        "gae, value_lambda"
    ]


def test_estimates_of_one_gradient_are_equal_by_right() -> None:
    same = [made_run(0.1, 0.2)]
    assert without_effect({"kl k2 in the loss": same, "kl k3+ in the loss": same}) == []
    assert without_effect({"kl k2 in the loss": same, "kl k3 in the loss": same}) == ["kl k3 in the loss"]


@pytest.mark.parametrize(("bounds", "value"), [({"at_most": 1.0}, 2.0), ({"at_least": 1.0}, 0.5)])
def test_a_family_is_held_to_the_worst_of_its_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bounds: dict[str, float], value: float
) -> None:
    monkeypatch.setattr("report.figures.OUT", tmp_path)
    report, acted = Report("some"), Acted("way", "nats", lambda run: run.distance, **bounds)
    near, far = [made_run(distance=0.25), made_run(distance=0.75)], [made_run(distance=1.0), made_run(distance=3.0)]
    acted.add_to(report, {"near": near, "far": far})
    assert report.finish() == 1
    (row,) = json.loads((tmp_path / "some.json").read_text())["rows"]
    assert (row["value"], row["holds"]) == (value, False)


# ---- the task


def test_an_answer_ends_with_its_first_end_or_is_cut_off() -> None:
    tokens = np.array([[3, 3, 3, 0, 5, 7], [7, 3, 3, 3, 3, 3], [3, 4, 3, 3, 3, 3]])
    answers, prompts = Answers(tokens, np.arange(18).reshape(3, 6) / -8), np.array([2, 2, 2])
    assert answers.length_N.tolist() == [4, 1, 6]
    assert answers.cut_off_N.tolist() == [False, False, True]
    rows = rows_of(answers, prompts, answers.length_N, 5)
    assert rows.token_ids.tolist() == [2, 3, 3, 3, 0, 2, 7, 2, 3, 4, 3, 3, 3, 3]
    assert rows.rollout_logprobs.tolist()[:7] == [0, 0, -1 / 8, -2 / 8, -3 / 8, 0, -6 / 8]
    assert rows.token_origin.tolist() == [0, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1]
    assert set(rows.token_steps.tolist()) == {5}
    assert rows.rewards.tolist() == pytest.approx([1.0, 0.0, 2 / 3])


def test_what_stands_behind_an_end_is_worth_nothing() -> None:
    answers = Answers(np.array([[3, 0, 3, 3, 3, 3]]), np.zeros((1, 6)))
    assert rewards_of(answers, np.array([2]), answers.length_N).tolist() == pytest.approx([1 / 3])


def test_an_answer_is_sampled_with_the_log_probs_of_its_policy() -> None:
    policy, generator = make_policy(3), torch.Generator().manual_seed(3)
    prompts = ragged_prompts(generator)
    answers = sample_answers(policy, prompts, generator)
    rows = rows_of(answers, prompts, answers.length_N, 0)
    assert prompts.max() + 1 < DIGITS - 1
    assert len(set(rows.lengths().tolist())) > 2
    (packed,) = Learner(config_of(), policy, policy).cut(rows, judged(rows, answers), 0)[0][0]
    torch.testing.assert_close(policy(packed, 1.0)[0].detach(), packed.rollout_logprobs, rtol=1e-5, atol=1e-6)


def judged(rows: RolloutRows, answers: Answers) -> RewardedRows:
    columns = rows.rewards, rows.valid, rows.group, rows.sample_index, row_targets(rows)
    return RewardedRows(*columns, np.zeros((rows.num_rows, 0)), answers.cut_off_N)


# ---- the runs


def test_rows_are_of_a_policy_some_steps_ago() -> None:
    run = train(config_of({"steps": LAG + 3}), 0)
    for step, metrics in enumerate(run.metrics):
        assert f"correction/lag_{min(step, LAG)}/tokens" in metrics
        assert f"correction/lag_{min(step, LAG) + 1}/tokens" not in metrics
    assert run.metrics[0]["mismatch/kl"] == pytest.approx(0.0, abs=1e-6)
    assert run.metrics[-1]["mismatch/kl"] > 1e-4
    assert run.distance > 0.0


def a_batch() -> tuple[RolloutRows, Answers]:
    """Rows that another policy sampled, some steps before step 0."""
    generator = torch.Generator().manual_seed(0)
    prompts = ragged_prompts(generator)
    answers = sample_answers(make_policy(1), prompts, generator)
    return rows_of(answers, prompts, answers.length_N, -LAG), answers


def backend_of(config: Config, group: LearnerGroup) -> FsdpBackend:
    return build(
        make_policy(0).model,
        optimizer=config.learner.optimizer,
        algorithm=config.learner.algorithm,
        total_steps=config.learner.steps,
        temperature=1.0,
        group=group,
        reference=make_policy(2),
    )


@pytest.mark.parametrize(
    "config",
    [
        config_of(kl_coef=0.3, entropy_coef=0.1),
        config_of({"mini_batches": 2, "ppo_epochs": 2}, proximal="recompute", correction="mis"),
    ],
    ids=["terms", "updates"],
)
def test_a_step_is_that_of_the_learner(group: LearnerGroup, config: Config) -> None:
    rows, answers = a_batch()
    learner, backend = Learner(config, policy := make_policy(0), make_policy(2)), backend_of(config, group)
    cut = learner.cut(rows, judged(rows, answers), 0)
    theirs = backend.step_batch([MiniBatch([packs], total) for packs, total in cut], config.learner.ppo_epochs)
    mine = learner.step(rows, answers.cut_off_N, 0)
    assert mine == {name: theirs[name] for name in mine}
    for name, weight in backend.iter_hf_weights():
        assert torch.equal(policy.model.get_parameter(name), weight)


def test_a_step_with_a_critic_and_tokens_that_pay_is_that_of_the_learner(group: LearnerGroup) -> None:
    """The two have weights of one beginning, whose critic is the policy's decoder."""
    paid = {"kl_coef": 0.5, "kl_in": "reward", "kl_estimator": "k1"}
    config = config_of(critic(length_alpha=2.0), advantage="gae", **paid)
    rows, answers = a_batch()
    learner, backend = Learner(config, policy := make_policy(0), make_policy(2)), backend_of(config, group)
    frozen = FrozenPolicy(lambda: make_policy(2).model, group, torch.float32)
    divergences = TokenDivergences(partial(referred, frozen, temperature=1, group=group), "k1", 0.5, group)
    model = ShardedCritic(decoder_of(make_policy(0).model), group, torch.float32)
    judge = critic_on_fsdp(model, config.learner.critic, config.learner.steps, divergences=divergences)
    mini_batches = [MiniBatch([packs], total) for packs, total in learner.cut(rows, judged(rows, answers), 0)]
    theirs = step_of_both(backend, judge, mini_batches, [[Part(rows, np.arange(rows.num_rows))]], 1)
    mine = learner.step(rows, answers.cut_off_N, 0)
    assert mine == {name: theirs[name] for name in mine}
    for name, weight in backend.iter_hf_weights():
        assert torch.equal(policy.model.get_parameter(name), weight)


@pytest.mark.parametrize("estimator", sorted(REWARD_DIVERGENCES))
def test_a_row_pays_the_divergences_of_its_tokens(estimator: str) -> None:
    rows, _ = a_batch()
    config, reference = config_of(kl_coef=0.5, kl_in="reward", kl_estimator=estimator), make_policy(2)
    (packed,) = packs(rows, np.zeros(rows.num_rows), 0)
    references = iter(reference(packed, 1.0)[0].tolist())
    formula = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}[estimator]
    for row, paid in enumerate(Learner(config, make_policy(0), reference).paid(rows, 0)):
        sampled = rows.rollout_logprobs[rows.offsets[row] + 1 : rows.offsets[row + 1]].tolist()
        assert paid == pytest.approx(0.5 * math.fsum(formula(one - next(references)) for one in sampled), rel=1e-5)


def test_a_reference_that_moves_makes_another_policy_than_one_that_stands_still() -> None:
    kinds = ReferenceConfig(), ReferenceConfig(kind="average", decay=0.2)
    runs = [train(config_of({"steps": 3}, kl_coef=0.5, reference=kind), 0) for kind in kinds]
    still, moving = (run.policy.state_dict() for run in runs)
    assert any(not torch.equal(still[name], moving[name]) for name in still)


# ---- what is asked for


def test_only_the_rows_that_are_asked_for_are_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("report.figures.OUT", tmp_path)
    monkeypatch.setattr("algorithm_cases.choices.STEPS", LAG + 2)
    monkeypatch.setattr("algorithm_cases.choices.SEEDS", (0,))
    report = Report("some")
    choices(report, lambda name: name in ("overlong penalty", "gae", "kl k2 in the loss"))
    assert report.finish() == 1  # nobody learns in five steps
    assert [row["name"] for row in json.loads((tmp_path / "some.json").read_text())["rows"]] == [
        "kl k2 in the loss",
        "distance from where it began, paid in the loss, the most of these rows",
        "gae",
        "overlong penalty",
        "share of answers cut off at the end, punished",
        "choices that changed nothing",
    ]


def test_a_pattern_that_matches_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(quick=False, only="corection*") == 2
    assert "'corection*'" in capsys.readouterr().err


def test_a_table_that_nobody_is_asked_for_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("report.figures.OUT", tmp_path)
    report = Report("none")
    choices(report, lambda name: False)
    assert report.finish() == 0
    assert json.loads((tmp_path / "none.json").read_text())["rows"] == []
