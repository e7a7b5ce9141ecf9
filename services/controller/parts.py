"""Makes the actors of a run.

All parts of a run are Ray actors that the controller owns: they end with it. Each runs in a process of its own with
a fixed number of threads, since two cores and eight processes with two threads each crawl. All run on the controller's
node, where the run folder is, but for the replicas, if the configuration says what their nodes have. A part that
computes on GPUs asks Ray for them, and sees those that it is given alone (`CUDA_VISIBLE_DEVICES`), the first as cuda:0.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from streamrl.config import Config
from streamrl.config.estimates.gpus import gpus_of_a_rank
from streamrl.errors import RunFolderError
from streamrl.scheduling.replica_names import replica_name
from streamrl.services.actors.process_environment import import_path, variables
from streamrl.services.controller.supply import Placer, rank_nodes
from streamrl.services.learner.actor import LearnerRank
from streamrl.services.queue.actor import QueueActor
from streamrl.services.reward.actor import RewardActor
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.actor import WeightStoreActor
from streamrl.services.weights.node import NodeActor
from streamrl.services.weights.node_folder import Visit
from streamrl.services.weights.run_node import RunNodeActor

# Ray starts it again, for as long as its node is up, and calls it again: all its calls may be made twice.
_COMES_BACK = {"max_restarts": -1, "max_task_retries": -1}
# Each replica, and at the gateway each ingress, has a call or two that wait there: with no place left for one more,
# nothing would be handed in, and all would wait for ever. A place costs nothing until it is taken.
_ALL_WAIT_THERE = {"max_concurrency": 4096}


class Parts:
    """The factory: knows the run folder and the configuration that every part is told. `home`, where a part takes it,
    is what `run_node` made, or None. made: takes the name and the actor of each that is made."""

    def __init__(
        self, run_folder: str, config: Config, made: Callable[[str, ActorHandle], None] = lambda *_: None
    ) -> None:
        self._run_folder = run_folder
        self._config = config
        self._made = made
        self._data: dict[str, Any] = msgspec.to_builtins(config)
        self._told: list[ray.ObjectRef] = []
        self._placer = Placer(config)

    def queue(self) -> ActorHandle:
        return self._make("queue", QueueActor, 1, self._run_folder, self._data, **_ALL_WAIT_THERE)

    def weight_store(self) -> ActorHandle:
        told = self._run_folder, self._config.deadlines.update_s
        return self._make("weights", WeightStoreActor, 1, *told, **_ALL_WAIT_THERE)

    def reward(self, queue: ActorHandle, home: ActorHandle | None = None) -> ActorHandle:
        return self._make("reward", RewardActor, 1, self._run_folder, self._data, queue, home)

    def replica(self, index: int, queue: ActorHandle, store: ActorHandle) -> ActorHandle:
        name = replica_name(index)
        threads = self._config.rollout.threads
        told = name, self._run_folder, self._data, queue, store
        return self._make(name, RolloutReplica, threads, *told, **self._placer.options())

    def learner_nodes(self, before: Sequence[str] = ()) -> list[str]:
        """Ray's ids of the nodes that ranks go to, the run's own first; none where all are on that. before: those that
        ranks were on, which they stay on. Raises ResourceError. Blocks for a call to Ray."""
        return rank_nodes(self._config, before)

    def learner(
        self,
        rank: int,
        meeting: str,
        queue: ActorHandle,
        store: ActorHandle,
        home: ActorHandle | None = None,
        nodes: Sequence[str] = (),
    ) -> ActorHandle:
        """meeting: path of the file at which the ranks find each other; it may not exist yet. nodes: as
        `learner_nodes`."""
        learner = self._config.learner
        told = rank, self._run_folder, self._data, meeting, queue, store, home
        options = {
            "num_gpus": gpus_of_a_rank(self._config),
            **(_on(nodes[rank // learner.ranks_per_node]) if nodes else {}),
        }
        return self._make(f"learner-{rank}", LearnerRank, learner.threads, *told, **options)

    def gateway(
        self, controller: ActorHandle, queue: ActorHandle, store: ActorHandle, home: ActorHandle | None
    ) -> ActorHandle:
        # Here and not above: a run without a gateway has no use for an HTTP server.
        from streamrl.services.gateway.actor import GatewayActor

        told = self._run_folder, self._data, controller, queue, store, home
        return self._make("gateway", GatewayActor, 1, *told, **_ALL_WAIT_THERE)

    def run_node(self, controller: ActorHandle, queue: ActorHandle, store: ActorHandle) -> ActorHandle:
        told = self._keep(self._run_folder, self._data, controller, queue, store)
        return self._make("home", RunNodeActor, 1, *told, **_COMES_BACK)

    def node(self, ray_node: str, visit: Visit, home: ActorHandle | None, store: ActorHandle | None) -> ActorHandle:
        """The actor of another node, by Ray's id of it."""
        return self._make(
            "node", NodeActor, 1, *self._keep(visit, self._data, home, store), **_COMES_BACK, **_on(ray_node)
        )

    def _keep(self, *args: Any) -> list[ray.ObjectRef]:
        """What an actor that comes back is told: Ray itself forgets it when the actor is made for the first time."""
        kept = [ray.put(arg) for arg in args]
        self._told += kept
        return kept

    def _make(self, name: str, cls: type, threads: int, *args: Any, **options: Any) -> ActorHandle:
        told: dict[str, Any] = {
            # The machine's two cores carry more actors than that: they share, and Ray must not queue them.
            "num_cpus": 0,
            "max_concurrency": 64,
            "runtime_env": {"env_vars": variables(threads, import_path(), self._config.rollout.keeps_rows_apart)},
            **(this_node() if "scheduling_strategy" not in options else {}),
            **options,
        }
        handle: Any = ray.remote(cls).options(**told).remote(*args)
        self._made(name, handle)
        return handle


async def sees_run(ray_node: str, run_folder: str, run_id: str) -> str:
    """Why a node does not see the folder of a run, in words; "" where it does."""
    asked: Any = ray.remote(_sees_run).options(num_cpus=0, **_on(ray_node)).remote(run_folder)
    found = await asked
    if found == run_id:
        return ""
    there = f"has a run {found} there" if found else "has no run there"
    return (
        f"learner.nodes: node {ray_node[:8]} {there}, at {run_folder}: set `runs` to a folder of a file system that "
        "all nodes of the learner see"
    )


def _sees_run(run_folder: str) -> str:
    """The id of the run in that folder; "" where there is none."""
    try:
        return RunFolder.open(Path(run_folder)).run_id
    except RunFolderError:
        return ""


def this_node() -> dict[str, Any]:
    """Ray's options for a part of the node of this process."""
    return _on(ray.get_runtime_context().get_node_id())


def _on(ray_node: str) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(ray_node, soft=False)}
