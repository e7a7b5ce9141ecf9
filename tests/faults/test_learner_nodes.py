"""The ranks of one learner on two nodes: they meet at an address, train as on one, and come back where one dies."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.runs.live_run import LiveRun, live_run, prepare
from support.runs.ray_cluster import RayCluster, ray_cluster

from streamrl.services.run.folder import SHARED_MEMORY, RunFolder

pytestmark = pytest.mark.ray

STEPS = 40
OPTIONS = (
    *("--learner.num_workers", "2", "--learner.nodes", "2", "--learner.steps", str(STEPS)),
    *("--rollout.engine", "scripted", "--rollout.replicas", "1", "--eval.every", "1000"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, which both nodes see."""
    folder = tmp_path_factory.mktemp("ranks")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[RayCluster]:
    with ray_cluster(folder, 1, {}) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


def ranks_on(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for one in processes:
        try:
            found += [one] if "".join(one.cmdline()[:1]).startswith("ray::LearnerRank") else []
        except psutil.NoSuchProcess:
            continue
    return found


def far_rank(cluster: RayCluster) -> psutil.Process:
    """The one of the other node; beside it there is one on the run's own."""
    everywhere, (far,) = ranks_on(cluster.everything()), ranks_on(cluster.processes(0))
    assert len(everywhere) == 2
    return far


def assert_trained(run: LiveRun) -> None:
    steps = {one["step"]: one for one in run.steps()}
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert all(math.isfinite(one["grad/norm"]) and one["grad/norm"] > 0 for one in steps.values())
    assert json.loads((run.folder / "summary.json").read_text())["steps"] == STEPS
    assert not list(SHARED_MEMORY.glob(f"{RunFolder.open(run.folder).shared_memory_prefix}*"))


def test_ranks_on_two_nodes_train_and_come_back_where_one_dies(
    folder: Path, cluster: RayCluster, streamrl_path: Path
) -> None:
    with live_run(folder, streamrl_path, "two", "--ray.address", cluster.address, *OPTIONS) as run:
        run.until_step(10)
        killed = far_rank(cluster)
        killed.kill()
        assert run.read_until(lambda event: "restart 1 of 3" in event.get("text", "")), run.end()
        run.until_step(20)
        assert far_rank(cluster).pid != killed.pid
        code, err = run.end()
    assert code == 0, err
    assert_trained(run)


def test_a_cluster_with_too_few_nodes_is_told_before_anything_starts(
    folder: Path, cluster: RayCluster, streamrl_path: Path
) -> None:
    many = ("--learner.num_workers", "8", "--learner.nodes", "8", "--learner.device", "cpu")
    with live_run(folder, streamrl_path, "many", "--ray.address", cluster.address, *OPTIONS, *many) as run:
        code, err = run.end()
    assert code == 3, err
    assert "learner.nodes = 8" in err
