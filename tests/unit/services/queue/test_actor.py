"""The queue actor: what it says of groups that are past their deadline, and what it tells the metrics."""

from pathlib import Path

import msgspec
import pytest

from streamrl.buffers.segments.places import PARTIALS_DIR
from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import QueueConfig
from streamrl.services.queue.actor import QueueActor
from streamrl.types import Version

AT_ONCE = -1.0
"""A limit that every group is past."""


@pytest.fixture
async def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)  # it is set for a process of its own
    config = Config(
        rollout=RolloutConfig(group_size=2),
        learner=LearnerConfig(groups_per_step=2, max_staleness=1),
        queue=QueueConfig(durability="memory"),
    )
    actor = QueueActor(str(tmp_path), msgspec.to_builtins(config))
    await actor.open(0, 7)
    yield actor
    await actor.close()


async def test_invariant_7_a_replica_past_its_deadline_is_named_with_its_oldest_group(actor) -> None:
    await actor.take("rollout-0", 0, Version(0, 0), 2)
    await actor.take("rollout-1", 0, Version(0, 0), 1)
    assert await actor.overdue(3600.0) == {}
    assert await actor.overdue(AT_ONCE) == {
        "rollout-0": "group 0 has not finished after -1 s",
        "rollout-1": "group 2 has not finished after -1 s",
    }


async def test_invariant_7_a_group_that_no_replica_took_up_again_is_told_of_too(actor) -> None:
    await actor.take("rollout-0", 0, Version(0, 0), 1)
    assert await actor.next_epoch("rollout-0") == 1
    assert await actor.overdue(3600.0) == {}
    assert await actor.overdue(AT_ONCE) == {"": "group 0 has not finished after -1 s"}


async def test_the_status_has_the_sums_that_the_metrics_need(actor) -> None:
    await actor.take("rollout-0", 0, Version(0, 0), 1)
    status = await actor.status()
    assert status["bytes_used"] == status["bytes_reserved"] > 0
    assert (status["groups_running"], status["rows_pending"], status["rows_waiting"]) == (1, 2, 0)


@pytest.mark.parametrize("accepted", [False, True])
async def test_what_unfinished_rollouts_had_sampled_is_forgotten_when_the_data_may_be_another(
    accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    partial = tmp_path / PARTIALS_DIR / "rollout-0-0-0.arrow"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"tokens")
    actor = QueueActor(str(tmp_path), msgspec.to_builtins(Config(queue=QueueConfig(durability="memory"))))
    await actor.open(0, 7, accepted)
    await actor.close()
    assert partial.exists() != accepted
