"""Makes the actors of a run.

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


class Parts:
    """The factory: knows the run folder and the configuration that every part is told."""

    def __init__(self, run_folder: str, config: Config) -> None:
        self._run_folder = run_folder
        self._config = config
        self._data: dict[str, Any] = msgspec.to_builtins(config)

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

    def learner(self, rank: int, meeting: str, queue: ActorHandle, store: ActorHandle) -> ActorHandle:
        """meeting: path of the file at which the ranks find each other; it may not exist yet."""
        threads = self._config.learner.threads
        return self._make(LearnerRank, threads, rank, self._run_folder, self._data, meeting, queue, store)

    def _make(self, cls: type, threads: int, *args: Any) -> ActorHandle:
        options: dict[str, Any] = {
            # The machine's two cores carry more actors than that: they share, and Ray must not queue them.
            "num_cpus": 0,
            "max_concurrency": 64,
            "runtime_env": {"env_vars": variables(threads, import_path())},
        }
        return ray.remote(cls).options(**options).remote(*args)
