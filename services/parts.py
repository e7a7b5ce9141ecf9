"""Makes the actors of a run and explains how they die.

All parts of a run are Ray actors that the controller owns: they end with it. Each runs in a process of its own with
a fixed number of threads, since two cores and eight processes with two threads each crawl.
"""

from typing import Any

import msgspec
import ray
from ray.actor import ActorHandle

from services.learner import LearnerRank
from services.process_environment import import_path, variables
from services.queue import QueueActor
from services.reward import RewardActor
from services.rollout import RolloutReplica
from services.weights import WeightStoreActor
from streamrl.config import Config
from streamrl.errors import ComponentError, StreamRLError


class Parts:
    """The factory: knows the run folder, the configuration and the incarnation that every part is told."""

    def __init__(self, run_folder: str, config: Config, incarnation: int) -> None:
        self._run_folder = run_folder
        self._config = config
        self._data: dict[str, Any] = msgspec.to_builtins(config)
        self._incarnation = incarnation

    def queue(self) -> ActorHandle:
        return self._make(QueueActor, 1, self._run_folder, self._data)

    def weight_store(self) -> ActorHandle:
        return self._make(WeightStoreActor, 1, self._run_folder, self._config.deadlines.update_s)

    def reward(self, queue: ActorHandle) -> ActorHandle:
        return self._make(RewardActor, 1, self._run_folder, self._data, queue)

    def replica(self, index: int, queue: ActorHandle, store: ActorHandle) -> ActorHandle:
        name = f"rollout-{index}"
        threads = self._config.rollout.threads
        return self._make(RolloutReplica, threads, name, self._run_folder, self._data, queue, store)

    def learner(self, rank: int, queue: ActorHandle, store: ActorHandle) -> ActorHandle:
        threads = self._config.learner.threads
        return self._make(
            LearnerRank,
            threads,
            rank,
            self._run_folder,
            self._data,
            self._incarnation,
            queue,
            store,
        )

    def _make(self, cls: type, threads: int, *args: Any) -> ActorHandle:
        options: dict[str, Any] = {
            # The machine's two cores carry more actors than that: they share, and Ray must not queue them.
            "num_cpus": 0,
            "max_concurrency": 64,
            "runtime_env": {"env_vars": variables(threads, import_path())},
        }
        return ray.remote(cls).options(**options).remote(*args)


def cause_of(error: BaseException) -> BaseException:
    """The error that a part raised, without Ray's envelope."""
    if isinstance(error, ray.exceptions.RayTaskError):
        inner = error.cause
        return inner if isinstance(inner, BaseException) else error
    return error


def explain_death(component: str, error: BaseException) -> StreamRLError:
    """One typed error for whatever ended a part: its own, or the death of its process."""
    cause = cause_of(error)
    if isinstance(cause, StreamRLError):
        return cause
    if isinstance(cause, ray.exceptions.RayActorError):
        return ComponentError(f"{component}: its process died: {_first_line(cause)}")
    return ComponentError(f"{component}: {type(cause).__name__}: {cause}")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
