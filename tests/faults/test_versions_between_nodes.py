"""Versions on their way to replicas on two other nodes, the second of which comes late: by each way, as deltas. Then
the process at either end is killed, and it goes on."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.runs.live_run import LiveRun, live_run, prepare
from support.runs.ray_cluster import RayCluster, ray_cluster

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Accepted
from streamrl.buffers.segments.places import node_of
from streamrl.services.run.folder import SHARED_MEMORY, RunFolder
from streamrl.services.weights.node_folder import _read_id

pytestmark = pytest.mark.ray

OPTIONS = (
    *("--rollout.engine", "scripted", "--rollout.slots", "8", "--rollout.resources", "{ rollout-node = 1 }"),
    *("--learner.steps", "100000", "--eval.every", "100000", "--deadlines.update_s", "30"),
    # As an optimiser's steps are: of most numbers the nearest in bfloat16 stays the same.
    *("--model.dtype", "bfloat16", "--learner.optimizer.lr", "1e-6"),
)
STEPS_BEFORE, STEPS_BETWEEN_LOOKS, LOOKS = 6, 5, 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    """A head, and a node with room for one of two replicas."""
    prepare(tmp_path)
    with ray_cluster(tmp_path, 1, {"rollout-node": 1}) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


Taken = dict[str, dict[str, int]]


def taken_when(run: LiveRun, streamrl: Path, enough: Callable[[Taken], bool]) -> Taken:
    """What each node says that it took, by the node's id, as soon as both have said it and it is `enough`: a status
    does not wait for parts that are slow to answer, and a process that was killed is back many steps later."""
    command = [streamrl, "status", run.folder, "--json"]
    for _ in range(LOOKS):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        fetched = json.loads(done.stdout)["fetched"]
        if fetched is not None and len(fetched["versions"]) == 2 and enough(fetched["versions"]):
            return fetched["versions"]
        run.until_step(run.steps()[-1]["step"] + STEPS_BETWEEN_LOOKS)
    pytest.fail(f"after {LOOKS} looks the nodes have taken: {fetched}")


def all_with_deltas(taken: Taken) -> bool:
    """Whether each node has taken versions in full, and more of them as deltas."""
    return all(0 < one["anchors"] < one["deltas"] for one in taken.values())


def node_id(cluster: RayCluster, node: int, run: LiveRun) -> str:
    return _read_id(cluster.folders[node] / RunFolder.open(run.folder).run_id)


def wrote(run: LiveRun) -> set[str]:
    """Nodes whose rows the queue has."""
    records = [record for file in read_ledger(run.folder / "queue/ledger") for record in file.records]
    return {node_of(record.frame.path) for record in records if isinstance(record, Accepted)}


def ways(folder: Path) -> dict[str, tuple[str, ...]]:
    (folder / "shared").mkdir()
    return {
        "object_store": (),
        "collective": (),
        "disk": ("--weights.folder", str(folder / "shared")),
    }


@pytest.mark.parametrize("way", ["object_store", "collective", pytest.param("disk", marks=pytest.mark.long)])
def test_a_node_that_comes_late_takes_an_anchor_and_then_deltas_while_the_other_goes_on(
    way: str, tmp_path: Path, cluster: RayCluster, streamrl_path: Path
) -> None:
    options = ("--ray.address", cluster.address, *OPTIONS, "--weights.between_nodes", way, *ways(tmp_path)[way])
    with live_run(tmp_path, streamrl_path, way, *options) as run:
        run.until_step(STEPS_BEFORE)
        cluster.add_node()
        assert run.read_until(lambda event: len(event.get("replicas", [])) == 2), (run.events[-3:], run.end())
        taken = taken_when(run, streamrl_path, all_with_deltas)
        assert bool(list((tmp_path / "shared").iterdir())) == (way == "disk")
        cluster.actor("RunNodeActor").kill()
        after = taken_when(run, streamrl_path, lambda now: all(now[n]["deltas"] > taken[n]["deltas"] + 5 for n in now))
        (service,) = (one for one in cluster.processes(1) if "".join(one.cmdline()[:1]).startswith("ray::NodeActor"))
        service.kill()
        late = node_id(cluster, 1, run)
        taken_when(run, streamrl_path, lambda now: now[late] != after[late] and all_with_deltas(now))
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    assert taken.keys() == {node_id(cluster, 0, run), late} == wrote(run)
    # A delta may be gone before a node asks for it, which then takes the version whole: there are several a second.
    assert all(one["failed_ways"] < one["anchors"] for one in taken.values()), taken
    assert not [text for text in run.notices() if "restart" in text]
    assert_the_ledger_is_told(run.steps())
    assert not list((tmp_path / "shared").iterdir())
    assert not list(SHARED_MEMORY.glob(f"{RunFolder.open(run.folder).shared_memory_prefix}*"))


def assert_the_ledger_is_told(steps: list[dict[str, Any]]) -> None:
    small = [step for step in steps if 0 < step["weights/delta_bytes"] < step["weights/full_bytes"] / 2]
    assert len(small) > len(steps) / 2
    told = [step for step in steps if step.get("weights/updates")]
    assert len(told) > len(steps) / 3
    for part in ("transfer", "load", "stall"):
        assert all(0 <= step[f"weights/{part}_s"] <= step[f"weights/{part}_max_s"] for step in told)
    assert all(step["weights/transfer_s"] > 0 for step in told)


@pytest.mark.long
@pytest.mark.parametrize("way", ["object_store", "collective", "disk"])
def test_nodes_take_the_base_of_adapters_once_for_each_learner_and_then_adapters_only(
    way: str, tmp_path: Path, cluster: RayCluster, streamrl_path: Path
) -> None:
    adapters = ("--learner.lora.rank", "2", "--weights.delta", "false", "--checkpoint.every", "2")
    options = ("--ray.address", cluster.address, *OPTIONS, "--weights.between_nodes", way, *ways(tmp_path)[way])
    with live_run(tmp_path, streamrl_path, f"adapted-{way}", *options, *adapters) as run:
        run.until_step(STEPS_BEFORE)
        cluster.add_node()
        taken = taken_when(run, streamrl_path, lambda now: all(one["anchors"] > 5 for one in now.values()))
        cluster.actor("LearnerRank").kill()
        again = taken_when(
            run, streamrl_path, lambda now: all(bases_in(now[node], run) == 2 for node in now if node in taken)
        )
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    assert [bases_in(one, run) for one in taken.values()] == [1, 1]
    assert [bases_in(one, run) for one in again.values()] == [2, 2]
    assert all(one["failed_ways"] < one["anchors"] for one in again.values()), again
    assert not list((tmp_path / "shared").iterdir())
    assert not list(SHARED_MEMORY.glob(f"{RunFolder.open(run.folder).shared_memory_prefix}*"))


def bases_in(taken: dict[str, int], run: LiveRun) -> float:
    """Bases among what a node took, by the bytes: everything else were versions in full."""
    (version,) = {step["weights/bytes"] for step in run.steps()}
    model = load_file(run.folder / "model" / "model.safetensors")
    base = sum(tensor.nbytes for tensor in model.values())
    return (taken["bytes"] - taken["anchors"] * version) / (base - version)
