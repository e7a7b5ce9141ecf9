"""What a run has generated gets other scores: what is not trained learns from them, what was trained keeps its own."""

import asyncio
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.runs.looked_run import finished_run, interrupted_run, run_folder
from support.runs.small_run import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    STEPS,
    Order,
    completion_rows,
    queue_settings,
    reward_of,
    token_ids,
)

from streamrl.buffers.ledger.facts import ledger_facts
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Dropped, Scored, Step
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.recovery.recorded import recorded_leases
from streamrl.buffers.recovery.verify import verify_queue
from streamrl.buffers.rows.arrow import completions_batch, scores_batch
from streamrl.buffers.rows.records import SCORED, AcceptedRows, ScoredRows, unpack
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR, SCORES_DIR
from streamrl.buffers.segments.retention import Retention
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import SystemClock
from streamrl.config import load
from streamrl.config.schema.learner import FilterConfig
from streamrl.errors import ComponentError, ConfigError, RunFolderError
from streamrl.learner.checkpoint import checkpoint
from streamrl.models.load import prepare_model_folder
from streamrl.services.commands.rescore import main
from streamrl.services.inspect.sql_tables import tables_for
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.run_lock import RunLock
from streamrl.types import Score, Version

LAST_STEP, SAVED = 3, 2
"""The run ends when it has committed the step; its checkpoint is of the second."""
REWARDS = """
def lengths(completions, completion_ids, **kwargs):
    return [-float(len(ids)) - ids[0] for ids in completion_ids]

def equal(completions, **kwargs):
    return [1.0] * len(completions)

def broken(completions, **kwargs):
    raise ValueError("no such thing")

def half(completions, completion_ids, **kwargs):
    return [None if len(ids) == 2 else 1.0 for ids in completion_ids]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that ended behind `LAST_STEP`, its model and the rewards beside it."""
    found, _ = interrupted_run(tmp_path, after="committed", step=LAST_STEP)
    prepare_model_folder(load(found.config_path).model, 0, found.path / "model")
    return _with_rewards(found, tmp_path, monkeypatch)


def _with_rewards(run: RunFolder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    (folder / "other_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return run


def lengths(number: int, sample: int) -> float:
    ids = token_ids(number, sample)
    return -float(len(ids)) - ids[0]


def score_again(run: RunFolder, reward: str, *rest: str) -> None:
    assert main(run, f"other_rewards:{reward}", rest, as_json=True) == 0


def leases(run: RunFolder, first: int, count: int) -> dict[int, dict[tuple[int, int], float]]:
    """What the steps from `first` on would be trained with, by group and sample, where the run goes on."""
    found = checkpoint.find_newest(run.path / "checkpoints").newest
    assert found is not None
    assert found.version.step == first
    queue = ReplayQueue.open(run.path, queue_settings(), Order(), SystemClock(), first)

    async def lease_all() -> dict[int, dict[tuple[int, int], float]]:
        taken = {}
        for step in range(first, first + count):
            lease = await queue.lease(step)
            assert lease is not None
            keys = zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)
            taken[step] = dict(zip(keys, lease.rewards.tolist(), strict=True))
            await queue.commit(step)
        return taken

    try:
        return asyncio.run(lease_all())
    finally:
        queue.close()


def recorded(run: RunFolder) -> dict[tuple[int, int], float]:
    """What each row of a recorded step was trained with."""
    found: dict[tuple[int, int], float] = {}
    for lease in recorded_leases(run.path, queue_settings(), Order()):
        keys = zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)
        found |= dict(zip(keys, lease.rewards.tolist(), strict=True))
    return found


def rollouts(run: RunFolder) -> dict[tuple[int, int], float]:
    rows = tables_for(run, "rollouts", pytest.fail)["rollouts"].to_pylist()
    return {(row["group_number"], row["sample_index"]): row["reward"] for row in rows}


def test_steps_behind_the_checkpoint_take_the_same_groups_with_the_new_scores(run: RunFolder) -> None:
    before = leases_without_change(run)
    score_again(run, "lengths")
    after = leases(run, SAVED, 2)
    assert {step: set(keys) for step, keys in after.items()} == {step: set(keys) for step, keys in before.items()}
    assert all(reward == lengths(*key) for step in after for key, reward in after[step].items())
    assert verify_queue(run.path, SAVED).damage == []


def leases_without_change(run: RunFolder) -> dict[int, dict[tuple[int, int], float]]:
    """The groups of the steps that were trained behind the checkpoint, by the ledger."""
    steps = ledger_facts(read_ledger(run.path / LEDGER_DIR)).steps
    return {
        step: {(number, sample): reward_of(number, sample) for number in steps[step] for sample in range(GROUP_SIZE)}
        for step in range(SAVED, LAST_STEP + 1)
    }


def test_what_was_trained_keeps_the_scores_that_it_was_trained_with(run: RunFolder) -> None:
    trained = recorded(run)
    score_again(run, "lengths")
    assert recorded(run) == trained
    shown = rollouts(run)
    assert {key: shown[key] for key in trained} == trained
    leases(run, SAVED, 2)
    again = recorded(run)
    covered = {key for key in trained if trained[key] == again[key]}
    assert len(covered) == SAVED * GROUPS_PER_STEP * GROUP_SIZE
    assert all(again[key] == lengths(*key) for key in again.keys() - covered)


def test_all_scores_are_in_the_log_with_their_revision(run: RunFolder) -> None:
    rows = len([reward for reward in rollouts(run).values() if reward is not None])
    score_again(run, "lengths")
    score_again(run, "equal")
    table = tables_for(run, "scores", pytest.fail)["scores"].to_pylist()
    for revision, scorer in enumerate(("reward", "rescore", "rescore")):
        found = [row for row in table if row["revision"] == revision]
        assert len(found) >= rows
        assert {row["scorer"] for row in found} == {scorer}
    kinds = tables_for(run, "ledger", pytest.fail)["ledger"].to_pylist()
    assert {row["who"] for row in kinds if row["kind"] == "rescored"} == {"rescore"}


class Waiting:
    """Groups that were generated behind the last step: all of them scored but for the last row of the last one."""

    def __init__(self, run: RunFolder, *, zero_variance: bool = False) -> None:
        self.run = run
        self.settings = msgspec.structs.replace(queue_settings(), filter=FilterConfig(zero_variance=zero_variance))
        self.ready = asyncio.run(self._generate())
        """How many of them wait for the learner."""

    def open(self) -> ReplayQueue:
        return ReplayQueue.open(self.run.path, self.settings, Order(), SystemClock(), LAST_STEP + 1)

    async def _generate(self) -> int:
        queue = self.open()
        epoch = await queue.next_epoch("replica-0")
        log = SegmentWriter(self.run.path, COMPLETIONS_DIR, "replica-0", epoch, COMPLETIONS, 2**16, "disk", 0.0)
        tickets = await queue.take("replica-0", epoch, Version(0, LAST_STEP + 1), GROUPS_PER_STEP + 1)
        for sequence, ticket in enumerate(tickets):
            rows = completion_rows(ticket, ticket.last_step)
            frame = log.append(completions_batch(rows)).result()
            numbers = np.full(GROUP_SIZE, ticket.number, np.int64)
            await queue.accept("replica-0", epoch, sequence, frame, AcceptedRows.of(rows, numbers))
        await self._score(queue, queue.counts().rows_unscored - 1)
        ready = queue.counts().groups_ready
        queue.close()
        log.close()
        return ready

    async def _score(self, queue: ReplayQueue, rows: int) -> list[tuple[int, int]]:
        """As the reward stage does, a row at a time; the rows."""
        keys = []
        epoch = await queue.next_epoch("reward")
        log = SegmentWriter(self.run.path, SCORES_DIR, "reward", epoch, SCORES, 2**16, "disk", 0.0)
        for sequence in range(rows):
            (part,) = await queue.unscored("reward", epoch, 1)
            key = int(part.number[0]), int(part.sample_index[0])
            reward = reward_of(*key)
            batch = scores_batch([f"{key[0]}/{key[1]}"], part.branch, [Score.ok(reward)], scorer="reward", scored_ns=0)
            frame = log.append(batch).result()
            columns = part.number, part.sample_index, part.branch, part.attempt, np.ones(1, np.bool_)
            await queue.add_scores("reward", epoch, sequence, frame, ScoredRows(*columns, np.array([reward])))
            keys.append(key)
        log.close()
        return keys

    async def finish(self) -> tuple[tuple[int, int], dict[tuple[int, int], float]]:
        """The last row, scored now, and the rewards of the next batch."""
        queue = self.open()
        (last,) = await self._score(queue, 1)
        lease = await queue.lease(LAST_STEP + 1)
        assert lease is not None
        queue.close()
        keys = zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)
        return last, dict(zip(keys, lease.rewards.tolist(), strict=True))


def _saved(run: RunFolder, step: int) -> None:
    weights = [("model/trained", torch.zeros(2))]
    snapshot = checkpoint.Snapshot(Version(0, step), weights, ledger_position=step, extra={})
    checkpoint.save(run.path / "checkpoints", snapshot, keep=1)


def test_groups_that_wait_learn_from_the_new_scores_whole(run: RunFolder) -> None:
    _saved(run, LAST_STEP + 1)
    waiting = Waiting(run)
    score_again(run, "lengths")
    queue = waiting.open()
    counts = queue.counts()
    assert (counts.groups_ready, counts.rows_scored, counts.rows_unscored) == (waiting.ready, 1, 1)
    queue.close()
    last, leased = asyncio.run(waiting.finish())
    assert len(leased) == GROUPS_PER_STEP * GROUP_SIZE
    assert leased == {key: reward_of(*key) if key == last else lengths(*key) for key in leased}
    shown = rollouts(run)
    assert all(shown[key] == leased[key] for key in leased)


def test_a_group_that_the_new_scores_leave_without_a_difference_is_dropped(run: RunFolder) -> None:
    _saved(run, LAST_STEP + 1)
    waiting = Waiting(run, zero_variance=True)
    score_again(run, "equal")
    for _ in range(2):
        queue = waiting.open()
        assert queue.counts().groups_dropped == {"zero_variance": waiting.ready}
        queue.close()


def test_a_failed_new_score_of_a_group_that_waits_is_a_failed_score(run: RunFolder) -> None:
    _saved(run, LAST_STEP + 1)
    waiting = Waiting(run)
    score_again(run, "half", "--reward.max_failed", "1")
    queue = waiting.open()
    assert queue.counts().groups_dropped == {"reward_failed": waiting.ready}
    queue.close()


def test_the_run_goes_on_with_the_new_reward(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run, "other_rewards:lengths", ["--reward.timeout_s", "3"], as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {key: reward for key, reward in rollouts(run).items() if reward is not None}
    assert (told["revision"], told["rows"], told["failed"], told["gone"]) == (1, len(rows), 0, 0)
    assert told["before"] == pytest.approx(np.mean([reward_of(*key) for key in rows]))
    assert told["after"] == pytest.approx(np.mean([lengths(*key) for key in rows]))
    assert told["learning"] == len({number for number, _ in rows}) - SAVED * GROUPS_PER_STEP
    config = load(run.config_path)
    assert config.reward.function == "other_rewards:lengths"
    assert config.reward.timeout_s == 3.0


@pytest.mark.parametrize("reward", ["broken", "half"])
def test_a_reward_that_fails_changes_nothing(run: RunFolder, reward: str) -> None:
    before, config = rollouts(run), run.config_path.read_bytes()
    with pytest.raises(ComponentError, match=r"max_failed = 0.2 allows, so all keep those that they have; the last"):
        score_again(run, reward)
    assert rollouts(run) == before
    assert run.config_path.read_bytes() == config
    score_again(run, "lengths")
    assert leases(run, SAVED, 1)[SAVED] == {key: lengths(*key) for key in leases_without_change(run)[SAVED]}


def test_a_group_of_a_trained_step_that_could_not_be_trained_keeps_its_scores(run: RunFolder) -> None:
    score_again(run, "half", "--reward.max_failed", "1")
    assert leases(run, SAVED, 2) == leases_without_change(run)


def test_a_run_that_is_up_and_a_reward_that_is_none_are_refused(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="no_such_module"):
        main(run, "no_such_module:score", [], as_json=True)
    with pytest.raises(ConfigError, match=r"not learner\.steps"):
        main(run, None, ["--learner.steps", "7"], as_json=True)
    lock = RunLock.take(run.lock_path)
    assert lock is not None
    with pytest.raises(RunFolderError, match="is up, and learns from the scores that it has"):
        score_again(run, "lengths")
    lock.release()
    score_again(run, "lengths")


def test_a_run_that_has_finished_is_scored_for_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _with_rewards(finished_run(tmp_path), tmp_path, monkeypatch)
    prepare_model_folder(load(run.config_path).model, 0, run.path / "model")
    trained = recorded(run)
    score_again(run, "lengths")
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["learning"]) == (STEPS * GROUPS_PER_STEP * GROUP_SIZE, 0)
    assert recorded(run) == trained


def test_nothing_generated_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no scored rollout yet"):
        main(run_folder(tmp_path), None, [], as_json=True)


def test_the_new_scores_stay_as_long_as_a_resume_could_read_them(run: RunFolder) -> None:
    score_again(run, "lengths")
    retention = Retention(run.path, queue_settings("covered"))
    records = [record for file in read_ledger(run.path / LEDGER_DIR) for record in file.records]
    scored = {
        number for one in records if isinstance(one, Scored) for number in unpack(SCORED, one.rows)["number"].tolist()
    }
    trained = {number for one in records if isinstance(one, Step) for number in one.numbers}
    # A run that ends at once may leave a group that is scored and not trained, whose rows are kept for it.
    for record in (*records, Dropped(sorted(scored - trained), "filtered")):
        retention.note(record)
    epochs = {"replica-0": 9, "reward": 9, "rescore": 9}

    def goes(oldest: int) -> bool:
        return any("/rescore-0-" in path for path in retention.removable(oldest, epochs, 0))

    assert not goes(SAVED)
    assert not goes(LAST_STEP)
    assert goes(LAST_STEP + 1)
