"""Trajectories as clients offer them, and a client that writes and offers them without a gateway."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from streamrl.buffers.index.submitted.offered import Standing
from streamrl.buffers.queue.gathering import Objection
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.conversations.branches import Branch, Turn
from streamrl.gateway.sessions.trajectory import Trajectory
from streamrl.services.queue.trajectory_log import WRITER, TrajectoryLog


def turn(*, prompt: Sequence[int] = (1, 2), ids: Sequence[int] = (3, 4, 5), step: int = 0) -> Turn:
    return Turn(prompt, ids, [-0.5] * len(ids), [(0, 0, step)])


def trajectory(
    key: str,
    *,
    group: str = "g",
    reward: float = 1.0,
    step: int = 0,
    branches: Sequence[Branch] | None = None,
    components: dict[str, float] | None = None,
) -> Trajectory:
    branches = branches or [Branch([turn(step=step)], "stop")]
    digest = xxhash.xxh3_64_intdigest(f"{key} {group} {reward}".encode())
    return Trajectory(key, digest, group, reward, components or {}, branches)


@dataclass
class Offering:
    """A gateway's log of one life, in front of a queue."""

    queue: ReplayQueue
    run: Path
    components: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        config = Config(
            model=ModelConfig(path="model"),
            queue=QueueConfig(durability="memory", segment_bytes=2**16, commit_interval_ms=0.0),
            learner=LearnerConfig(algorithm=AlgorithmConfig(components=dict.fromkeys(self.components, 1.0))),
        )
        self.log = TrajectoryLog(self.run, config, self.queue.next_epoch)

    async def offer(self, key: str, **said) -> Standing | Objection:
        made = trajectory(key, **said)
        known = await self.queue.trajectories.standing(key)
        if known is not None:
            return known
        place = self.queue.trajectories.place(made.group, made.versions)
        if isinstance(place, Objection):
            return place
        told = await self.log.write(made, place)
        return await self.queue.trajectories.offer(WRITER, self.log.epoch, told, made.versions)
