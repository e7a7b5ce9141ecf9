"""The components of a reward, from what a function returned to a lease: in memory, and after a restart."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from support.learner.small_lease import lease
from support.queue.queue_parts import Parts, both, kill, open_queue
from support.queue.small_index import Order, accept, queue_settings, score, scored

from streamrl.algorithms.advantages.gdpo import gdpo
from streamrl.algorithms.group_filter import reason_to_filter
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.columns import map_columns
from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import FilterConfig, LearnerConfig
from streamrl.errors import DataError, RunFolderError
from streamrl.rewards.base import component_columns, to_score, with_components
from streamrl.services.inspect.queue import _settings as books_settings
from streamrl.services.learner.lease_facts import _zero_variance_share
from streamrl.services.learner.step_plan import make_plan
from streamrl.services.queue.actor import queue_settings as queue_settings_of
from streamrl.tasks.resolve import resolve_task
from streamrl.types import Score, Version

NAMES = ("correct", "format")


# ---- a score


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"correct": 1.0, "format": 0.0, "other": 3}, ""),
        ({"format": 0.0}, "no component 'correct'; the reward function gave 'format'"),
        (1.0, "no component 'correct'; the reward function gave none"),
        (None, "returned None"),
        ({"correct": math.nan, "format": 0.0}, "component 'correct' is nan"),
    ],
)
def test_a_score_that_lacks_a_component_has_failed_and_says_which(returned: object, reason: str) -> None:
    score = with_components(to_score(returned), NAMES)
    assert (score.reward is None, score.reason) == (bool(reason), reason)


def test_what_a_child_sends_is_no_component_unless_it_is_finite() -> None:
    forged = Score.ok(1.0, {"correct": math.inf, "format": 0.0})
    assert with_components(forged, NAMES).reason == "component 'correct' is inf"
    assert with_components(forged, ()) is forged


def test_the_columns_are_in_the_order_of_the_names_whatever_order_the_function_has() -> None:
    first, last = {"format": 2.0, "x": 9.0, "correct": 1.0}, {"correct": 3.0, "format": 4.0}
    scores = [Score.ok(1.0, first), Score.failed("no"), Score.ok(0.0, last)]
    np.testing.assert_array_equal(component_columns(scores, NAMES), [[1.0, 2.0], [math.nan] * 2, [3.0, 4.0]])
    assert component_columns(scores, ()).shape == (3, 0)
    assert component_columns([], NAMES).shape == (0, 2)


@pytest.mark.parametrize("seed", range(10))
def test_what_was_written_is_read_as_by_a_loop_whatever_slice_it_is_of(seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    words = ["correct", "format", "other", "é"]
    given = [{word: float(random.normal()) for word in words if random.random() < 0.6} for _ in range(12)]
    scores = [Score.failed("no") if random.random() < 0.2 else Score.ok(0.0, one) for one in given]
    column = scores_batch(["g"] * 12, np.zeros(12, np.int32), scores, scorer="s", scored_ns=0).column("components")
    start, end = sorted(random.integers(0, 13, 2).tolist())
    expected = [[score.components.get(name, math.nan) for name in ("é", "correct")] for score in scores[start:end]]
    got = map_columns(column.slice(start, end - start), ("é", "correct"))
    np.testing.assert_array_equal(got, np.array(expected).reshape(end - start, 2))


def test_a_row_without_a_verdict_has_no_component() -> None:
    column = pa.array([[("correct", 1.0)], None, []], pa.map_(pa.string(), pa.float64()))
    np.testing.assert_array_equal(map_columns(column, ("correct",)), [[1.0], [math.nan], [math.nan]])


# ---- the index


def make_index(**settings) -> ReplayIndex:
    settings = {"components": NAMES, **settings}
    return ReplayIndex(msgspec.structs.replace(queue_settings(groups_per_step=1), **settings), Order(), VirtualClock())


def test_a_lease_has_the_components_of_its_rows_in_its_own_order() -> None:
    index = make_index()
    index.issue("r", 0, 1)
    accept(index, [(0, 1), (0, 0)])
    keys = [(0, 1), (0, 0)]
    index.score(scored(keys), np.ones(2, bool), np.array([5.0, 6.0]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    got = index.lease(0)
    assert (got.rewards.tolist(), got.components.tolist()) == ([6.0, 5.0], [[3.0, 4.0], [1.0, 2.0]])


def test_a_failed_score_has_none_and_one_that_came_twice_changes_nothing() -> None:
    index = make_index(group_size=3)
    index.issue("r", 0, 1)
    keys = [(0, 0), (0, 1), (0, 2)]
    accept(index, keys)
    values = np.array([[1.0, 2.0], [math.nan, 7.0], [3.0, 4.0]])
    index.score(scored(keys[:1]), np.ones(1, bool), np.ones(1), values[:1])
    index.score(scored(keys), np.array([True, False, True]), np.array([9.0, math.nan, 1.0]), values[[2, 1, 2]])
    got = index.lease(0)
    np.testing.assert_array_equal(got.components, [[1.0, 2.0], [math.nan, math.nan], [3.0, 4.0]])


def test_without_names_a_lease_has_no_column() -> None:
    index = make_index(components=())
    index.issue("r", 0, 1)
    accept(index, both(0))
    score(index, both(0))
    assert index.lease(0).components.shape == (2, 0)


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (None, r"shape \(2, 0\) are told of 2 verdicts; the queue was told \('correct', 'format'\)"),
        (np.zeros((2, 1)), r"shape \(2, 1\)"),
        (np.zeros((1, 2)), r"shape \(1, 2\)"),
        (np.array([[0.0, 1.0], [1.0, math.nan]]), "group 0, sample 1: a valid score with a component 'format' of nan"),
    ],
)
def test_verdicts_without_all_components_are_refused_whole(components: np.ndarray | None, message: str) -> None:
    index = make_index()
    index.issue("r", 0, 1)
    accept(index, both(0))
    with pytest.raises(DataError, match=message):
        index.score(scored(both(0)), np.ones(2, bool), np.ones(2), components)
    assert index.counts().rows_scored == 0


def test_the_queue_of_a_run_is_told_the_names_and_so_is_who_reads_its_books() -> None:
    task = resolve_task("arithmetic", 0.1)
    for settings in (queue_settings_of(gdpo_config(), task, 7), books_settings(gdpo_config())):
        assert settings.components == NAMES
    assert queue_settings_of(Config(), task, 7).components == ()


# ---- what has no variance


@pytest.mark.parametrize(
    ("components", "reason"),
    [
        ([(1.0, 0.0), (0.0, 1.0)], ""),
        ([(1.0, 0.0), (1.0, 0.0)], "zero_variance"),
        (None, "zero_variance"),
    ],
)
def test_a_group_of_equal_rewards_is_kept_if_a_component_varies(components: list | None, reason: str) -> None:
    assert reason_to_filter([1.0, 1.0], FilterConfig(zero_variance=True), components) == reason


def test_equal_components_have_no_variance_whatever_the_rewards_are() -> None:
    assert reason_to_filter([0.0, 1.0], FilterConfig(zero_variance=True), [(1.0,), (1.0,)]) == "zero_variance"


@pytest.mark.parametrize("second", [(0.0, 1.0), (1.0, 0.0)])
def test_the_index_filters_by_the_components(second: tuple[float, float]) -> None:
    index = make_index(filter=FilterConfig(zero_variance=True))
    index.issue("r", 0, 1)
    accept(index, both(0))
    index.score(scored(both(0)), np.ones(2, bool), np.ones(2), np.array([(1.0, 0.0), second]))
    assert index.counts().groups_dropped == ({} if second == (0.0, 1.0) else {"zero_variance": 1})


# ---- the queue, and what its ledger gives back


def named(number: int, sample: int) -> dict[str, float]:
    return {"format": number - sample / 4, "late": 7.0 + sample, "correct": number * 10.0 + sample}


async def waiting(run: Path, **changes) -> None:
    """Two groups scored and not leased yet, one score failed; then it is killed."""
    parts = Parts(open_queue(run, components=NAMES, group_size=3, **changes), run, components=NAMES)
    tickets = await parts.queue.take("r", 0, Version(0, 0), 2)
    await parts.accept([(ticket.number, sample) for ticket in tickets for sample in range(3)])
    await parts.score_waiting(reward=lambda number, sample: None if (number, sample) == (1, 2) else 1.0, parts=named)
    kill(parts.queue)


def expected(*names: str) -> list[list[float]]:
    keys = [(number, sample) for number in range(2) for sample in range(3)]
    return [[named(*key)[name] if key != (1, 2) else math.nan for name in names] for key in keys]


@pytest.mark.parametrize("names", [NAMES, ("late",), ("format", "correct", "late"), ()])
async def test_a_restart_has_the_components_that_are_asked_for_now(names: tuple[str, ...], tmp_path: Path) -> None:
    await waiting(tmp_path)
    queue = open_queue(tmp_path, components=names, group_size=3)
    got = await queue.lease(0)
    np.testing.assert_array_equal(got.components, np.array(expected(*names)).reshape(6, len(names)))
    assert got.valid.tolist() == [True] * 5 + [False]
    queue.close()


async def test_a_component_that_the_scores_never_had_ends_the_start_with_one_error(tmp_path: Path) -> None:
    await waiting(tmp_path)
    with pytest.raises(RunFolderError, match=r"group 0, sample 0 .*'style', which .*\.components names now.*--fresh"):
        open_queue(tmp_path, components=("correct", "style"), group_size=3)


async def test_scores_that_a_checkpoint_covers_need_no_component(tmp_path: Path) -> None:
    parts = Parts(open_queue(tmp_path, components=NAMES), tmp_path, components=NAMES)
    tickets = await parts.queue.take("r", 0, Version(0, 0), 2)
    await parts.accept([key for ticket in tickets for key in both(ticket.number)])
    await parts.score_waiting(parts=named)
    await parts.queue.lease(0)
    await parts.queue.commit(0)
    await parts.queue.covered(1)
    kill(parts.queue)
    queue = open_queue(tmp_path, resume_step=1, components=("style",))
    assert queue.counts().groups_trained == 2
    queue.close()


# ---- the plan of a step


def gdpo_config() -> Config:
    algorithm = AlgorithmConfig(advantage="gdpo", components={"correct": 1.0, "format": 0.5})
    return Config(learner=LearnerConfig(algorithm=algorithm))


def test_the_plan_has_the_advantages_of_the_components() -> None:
    given = lease(rows=40, seed=9)
    components = np.where(given.valid[:, None], np.random.default_rng(9).normal(size=(40, 2)), math.nan)
    given = replace(given, components=components)
    plan = make_plan(given, gdpo_config(), hidden_size=64)
    weights = np.array([1.0, 0.5])
    wanted = gdpo(components, given.valid, given.group, given.sampled_tokens, weights)
    np.testing.assert_array_equal(np.frombuffer(plan.advantages), wanted)
    assert np.abs(wanted).max() > 0.5


def test_the_share_of_groups_without_variance_is_of_the_components() -> None:
    given = lease(rows=8, seed=1)
    valid, rewards = np.ones(8, bool), np.repeat([0.0, 1.0], 4)
    alike = replace(given, valid=valid, rewards=rewards)
    assert _zero_variance_share(alike) == 1.0
    one_varies = np.stack([np.arange(8) < 1, np.zeros(8)], axis=1).astype(np.float64)
    assert _zero_variance_share(replace(alike, components=one_varies)) == 0.5
