"""A run on three nodes: rollouts on two, all other parts on the third, each with a run folder of its own."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.runs.live_run import LiveRun, live_run, prepare
from support.runs.ray_cluster import RayCluster, ray_cluster

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Accepted, Lost, Step
from streamrl.buffers.segments.places import node_of
from streamrl.services.run.folder import SHARED_MEMORY, RunFolder

pytestmark = pytest.mark.ray

# The second replica may begin many steps after the first: it starts slowly on a busy machine.
STEPS, GROUPS_PER_STEP, GROUP_SIZE = 150, 8, 4
OPTIONS = (
    # Too few slots for one replica to do it all.
    *("--rollout.engine", "scripted", "--rollout.slots", "8", "--rollout.resources", "{ rollout-node = 1 }"),
    *("--learner.steps", str(STEPS), "--eval.every", "1000"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder; its reward is found by the processes of every node."""
    folder = tmp_path_factory.mktemp("three")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[RayCluster]:
    """Each of two nodes has room for both replicas."""
    with ray_cluster(folder, 2, {"rollout-node": 2}) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


def until_both_serve(run: LiveRun) -> None:
    """Until the replicas of both nodes gave rows, and two steps more."""
    both = run.read_until(lambda event: event["kind"] == "replicas" and len(nodes_with_rows(run)) == 2)
    assert both, (run.events[-3:], run.end())
    run.until_step(max([one["step"] for one in run.steps()], default=0) + 2)


def nodes_with_rows(run: LiveRun) -> set[str]:
    return {node_of(record.frame.path) for record in recorded(run, Accepted)}


def on_node(cluster: RayCluster, node: int, actor: str) -> psutil.Process:
    (found,) = (one for one in cluster.processes(node) if one.cmdline()[:1] and one.cmdline()[0].startswith(actor))
    return found


def replica_on(cluster: RayCluster, node: int, run: LiveRun) -> str:
    (log,) = (cluster.folders[node] / RunFolder.open(run.folder).run_id / "logs").glob("rollout-*.log")
    return log.stem


def stop_scoring_with_rows_unread(cluster: RayCluster, run: LiveRun, replica: str) -> psutil.Process:
    """Suspend the reward stage, the first reader of every row, at a moment after which a replica still gives rows.

    Returns what goes on with `resume`. Without it the run trains on what was scored, and then it waits.
    """
    reward = cluster.actor("RewardActor")
    for _ in range(12):
        reward.suspend()
        before = accepted_rows(run, replica)
        for _ in range(2):  # what is under way ends within a look at the replicas, and the next one
            assert run.read_until(lambda event: event["kind"] == "replicas")
        if accepted_rows(run, replica) > before:
            return reward
        reward.resume()
        run.until_step(run.steps()[-1]["step"] + 1)
    pytest.fail("the replica gave no rows whenever nobody read them")


def accepted_rows(run: LiveRun, replica: str) -> int:
    return sum(one.frame.num_rows for one in recorded(run, Accepted) if one.replica == replica)


def far_file(cluster: RayCluster, node: int, run: LiveRun, path: str) -> Path:
    """Where a segment lies if this node wrote it."""
    return cluster.folders[node] / RunFolder.open(run.folder).run_id / path


def summary(run: LiveRun) -> dict[str, Any]:
    return json.loads((run.folder / "summary.json").read_text())


def recorded(run: LiveRun, kind: type) -> list[Any]:
    files = read_ledger(run.folder / "queue/ledger")
    return [record for file in files for record in file.records if isinstance(record, kind)]


def assert_trained_once(run: LiveRun) -> None:
    # Of a step that was trained again the last one counts. Not by the rows: some are let go.
    trained = {record.step: record.numbers for record in recorded(run, Step)}
    groups = [number for step in range(STEPS) for number in trained[step]]
    assert len(groups) == len(set(groups)) == STEPS * GROUPS_PER_STEP


def assert_nothing_left(run: LiveRun) -> None:
    assert not list(SHARED_MEMORY.glob(f"{RunFolder.open(run.folder).shared_memory_prefix}*"))


@pytest.mark.long
def test_rows_are_fetched_and_neither_dead_services_nor_a_resume_lose_any(
    folder: Path, cluster: RayCluster, streamrl_path: Path
) -> None:
    small_files = ("--queue.segment_bytes", str(2**17), "--reward.batch_size", "64", "--queue.retain", "covered")
    options = ("--ray.address", cluster.address, *OPTIONS, *small_files)
    with live_run(folder, streamrl_path, "resumed", *options) as run:
        until_both_serve(run)
        on_node(cluster, 0, "ray::NodeActor").kill()
        run.until_step(run.steps()[-1]["step"] + 5)
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    nodes = nodes_with_rows(run)
    assert len(nodes) == 2
    # The copies go: what an earlier launch left on the nodes has to be found there again.
    shutil.rmtree(run.folder / "nodes")

    with live_run(folder, streamrl_path, "resumed", *options) as again:
        code, err = again.end()
    assert code == 0, err
    assert_trained_once(run)
    assert nodes_with_rows(run) == nodes
    assert summary(run)["rows_lost"] == 0
    steps = len(again.steps())
    assert summary(run)["rows_fetched"] >= steps * GROUPS_PER_STEP * GROUP_SIZE
    written = {record.frame.path for record in recorded(run, Accepted)}
    there = {path for path in written if any(far_file(cluster, node, run, path).exists() for node in range(2))}
    # What the last checkpoints let go may not have been removed any more.
    assert len(there) < len(written) / 2
    assert_nothing_left(run)


def test_a_node_that_dies_takes_only_what_nobody_has_read_and_that_is_generated_again(
    folder: Path, cluster: RayCluster, streamrl_path: Path
) -> None:
    with live_run(folder, streamrl_path, "plug", "--ray.address", cluster.address, *OPTIONS) as run:
        until_both_serve(run)
        replica = replica_on(cluster, 0, run)
        reward = stop_scoring_with_rows_unread(cluster, run, replica)
        cluster.pull_the_plug(0)
        reward.resume()
        code, err = run.end()
    assert code == 0, err
    assert_trained_once(run)
    lost = recorded(run, Lost)
    assert summary(run)["rows_lost"] == sum(record.rows for record in lost) > 0
    told = [text for text in run.notices() if "are lost with it, and are generated again" in text]
    assert len(told) == len(lost)
    assert any(text.startswith(f"{replica}: ") and "restart 1 of 3" in text for text in run.notices())
    assert_nothing_left(run)
