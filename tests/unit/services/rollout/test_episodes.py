"""Episodes at a replica: played beside each other, given up, begun anew under the same id, and written once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.data.chat_model import write_rows
from support.engines.calling_model import prepare_calling_model
from support.gateway.local_gateway import until
from support.runs.probe_parts import with_replica

from streamrl.config import Config
from streamrl.config.schema.data import DataConfig
from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig, ScriptedConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.errors import ComponentError
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.rollout.rows import FinishedEpisode
from streamrl.services.run.folder import RunFolder
from streamrl.types import FinishReason, Ticket, Version

GROUP_SIZE = 2
FIRST, SECOND = Ticket(4, 3, 0, 0, 9), Ticket(5, 1, 0, 0, 9)


def configured(
    folder: Path, *, environment: str = "Helper", retries: int = 2, groups: int | None = None, **scripted: Any
) -> Config:
    prepare_calling_model(folder / "model")
    rows = write_rows(folder / "rows.jsonl", [{"prompt": "hi", "answer": str(number)} for number in range(6)])
    return Config(
        model=ModelConfig(path=str(folder / "model")),
        data=DataConfig(train=str(rows), cache=str(folder / "cache")),
        environment=EnvironmentConfig(name=f"support.environments.games:{environment}", max_tokens=64, retries=retries),
        learner=LearnerConfig() if groups is None else LearnerConfig(groups_per_step=groups),
        rollout=RolloutConfig(
            engine="scripted",
            group_size=GROUP_SIZE,
            sampling=SamplingConfig(max_new_tokens=8),
            scripted=ScriptedConfig(**scripted),
        ),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )


class Ended:
    """What episodes came to, as they end."""

    def __init__(self, replica: RolloutReplica) -> None:
        self.episodes: asyncio.Queue[FinishedEpisode] = asyncio.Queue()
        self.count = 0
        replica._rollouts._ended = self._take

    def _take(self, finished: list[FinishedEpisode], count: int, idle: bool) -> None:
        self.count += count
        for one in finished:
            self.episodes.put_nowait(one)

    async def take(self, count: int) -> list[FinishedEpisode]:
        return [await asyncio.wait_for(self.episodes.get(), 20.0) for _ in range(count)]


def at_replica(config: Config, folder: Path, use: Callable[[RolloutReplica, Ended], Awaitable[None]]) -> None:
    async def used(replica: RolloutReplica, run: RunFolder) -> None:
        try:
            await use(replica, Ended(replica))
        finally:
            await replica._rollouts.close()

    asyncio.run(with_replica(config, folder / "run", used))


async def begin(replica: RolloutReplica, *tickets: Ticket) -> None:
    await replica._rollouts.begin(await replica._requests.of(tickets), lambda: Version(0, 0))


def test_all_episodes_of_the_groups_end_each_with_its_own_row(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, FIRST, SECOND)
        assert len(replica._rollouts) == 4
        found = await ended.take(4)
        assert len({one.rollout for one in found}) == 4
        assert {one.episode.finish_reason for one in found} <= {FinishReason.STOP, FinishReason.LENGTH}
        assert (len(replica._rollouts), ended.count) == (0, 4)
        counts = replica._rollouts.status()
        assert counts["environment_episodes"] == 4
        assert counts["environment_turns"] == sum(one.episode.record.turns for one in found)

    at_replica(configured(tmp_path, latency_steps=2), tmp_path, use)


def test_groups_that_are_given_up_end_at_once_and_no_others(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, FIRST, SECOND)
        await until(lambda: len(replica._rollouts._requests) == 4)
        replica._rollouts.abort([SECOND.number])
        found = await ended.take(GROUP_SIZE)
        assert {one.issued.ticket.number for one in found} == {SECOND.number}
        assert {one.episode.finish_reason for one in found} == {FinishReason.ABORT}
        assert len(replica._rollouts) == GROUP_SIZE

    at_replica(configured(tmp_path, hang_rate=1.0), tmp_path, use)


def test_a_group_that_is_given_up_before_its_first_request_asks_the_engine_nothing(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, SECOND)
        replica._rollouts.abort([SECOND.number])
        found = await ended.take(GROUP_SIZE)
        assert {one.episode.finish_reason for one in found} == {FinishReason.ABORT}
        stats = await asyncio.wrap_future(replica._thread.stats())
        assert stats.finished_requests == stats.running == 0

    at_replica(configured(tmp_path, hang_rate=1.0), tmp_path, use)


def test_a_group_that_is_issued_again_is_begun_anew_and_its_first_attempt_leaves_nothing(tmp_path: Path) -> None:
    again = Ticket(FIRST.number, FIRST.data_index, 0, 1, 9)

    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, FIRST)
        await until(lambda: len(replica._rollouts._requests) == GROUP_SIZE)
        await begin(replica, again)
        assert ended.count == GROUP_SIZE
        await until(lambda: len(replica._rollouts._requests) == GROUP_SIZE)
        replica._rollouts.abort([FIRST.number])
        found = await ended.take(GROUP_SIZE)
        assert {one.issued.ticket.attempt for one in found} == {1}
        assert (len(replica._rollouts), ended.count) == (0, 2 * GROUP_SIZE)
        assert ended.episodes.empty()
        await until(lambda: not replica._rollouts._asked)

    at_replica(configured(tmp_path, hang_rate=1.0), tmp_path, use)


def test_a_group_that_was_given_up_and_is_issued_again_is_played(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, FIRST)
        replica._rollouts.abort([FIRST.number])
        await begin(replica, FIRST)  # before the first attempt has come to its end
        await until(lambda: len(replica._rollouts._requests) == GROUP_SIZE)
        assert ended.episodes.empty()

    at_replica(configured(tmp_path, hang_rate=1.0), tmp_path, use)


def test_closing_leaves_no_child_and_no_episode(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, FIRST)
        await until(lambda: len(replica._rollouts._requests) == GROUP_SIZE)
        (child,) = replica._rollouts._pool.pids
        await replica._rollouts.close()
        assert not psutil.pid_exists(child)
        assert ended.episodes.empty()

    at_replica(configured(tmp_path, hang_rate=1.0), tmp_path, use)


def test_an_environment_that_fails_more_often_than_is_allowed_ends_the_replica_and_says_why(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        await begin(replica, FIRST)
        failed = await ended.take(GROUP_SIZE)
        assert {one.episode.finish_reason for one in failed} == {FinishReason.ERROR}
        with pytest.raises(ComponentError, match=r"2 of the last 2 episodes failed, .*: .*turn 0: raised: .*no board"):
            await asyncio.wait_for(replica._death, 20.0)

    config = configured(tmp_path, environment="Lost", groups=1, retries=0)
    at_replica(config, tmp_path, use)


def test_what_a_client_submits_spends_nothing_of_it(tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, ended: Ended) -> None:
        submitted = [
            (replace(issued, stream="mine"), asked) for issued, asked in await replica._requests.of([FIRST, SECOND])
        ]
        await replica._rollouts.begin(submitted, lambda: Version(0, 0))
        await ended.take(2 * GROUP_SIZE)
        await asyncio.sleep(0)
        assert not replica._death.done()

    at_replica(configured(tmp_path, environment="Lost", groups=1, retries=0), tmp_path, use)
