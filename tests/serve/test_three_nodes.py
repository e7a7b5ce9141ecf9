"""A cluster of three nodes with an ingress on each: one is killed under many streams, and no session loses a turn."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest
from support.ingress.serve_run import OPTIONS, ServedRun, served_run
from support.runs.live_run import prepare
from support.runs.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.ray

STREAMS, SESSIONS, NODES = 90, 12, 3
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nodes")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[RayCluster]:
    with ray_cluster(folder, NODES - 1, {}) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


@pytest.fixture(scope="module")
def served(folder: Path, cluster: RayCluster) -> Iterator[ServedRun]:
    """The cluster has Ray's token, so nothing else has to be said."""
    slow = ("--rollout.scripted.step_s", "1.0")  # a token a second: all streams are under way at once
    options = (*OPTIONS, *slow, "--ray.address", cluster.address)
    with served_run(folder, "nodes", *options, replicas=NODES, processes=cluster.everything) as run:
        yield run


def nodes_of_replicas(cluster: RayCluster, served: ServedRun) -> list[int]:
    """On how many of the nodes beside the head there is one."""
    pids = {one.pid for one in served.replicas()}
    return [len(pids & {one.pid for one in cluster.processes(node)}) for node in range(NODES - 1)]


def guests(served: ServedRun) -> int:
    """Completions of clients that replicas are at."""
    _, told = served.ask("/api/status", url=served.own_url)
    return sum(replica["guests"] for replica in told["replicas"])


def streamed(served: ServedRun) -> bool:
    """Whether a stream came to its end; one that did not says so."""
    body = {"model": "nodes", "prompt": PROMPT, "max_tokens": 24, "stream": True}
    try:
        return served.stream(body)[1]
    except (OSError, HTTPException):
        return False


def test_each_node_has_a_replica_below_the_runs_name(served: ServedRun, cluster: RayCluster) -> None:
    assert served.serve_url.endswith("/nodes")
    assert nodes_of_replicas(cluster, served) == [1, 1]
    assert len(served.replicas()) == NODES


def test_a_replica_that_is_killed_under_many_streams_takes_its_own_alone_and_no_session(served: ServedRun) -> None:
    prompts = {f"agent-{number}": [*PROMPT, number % 9] for number in range(SESSIONS)}
    victim = served.replicas()[0]
    with ThreadPoolExecutor(STREAMS) as threads:
        first = dict(zip(prompts, threads.map(served.complete, prompts, prompts.values()), strict=True))
        streams = [threads.submit(streamed, served) for _ in range(STREAMS)]
        while guests(served) < STREAMS * 3 // 4:
            assert not any(one.done() for one in streams), "they ended before all of them were under way"
        victim.kill()
        psutil.wait_procs([victim], timeout=30)
        whole = [one.result() for one in streams]
        assert 0 < whole.count(False) <= STREAMS * 3 // 4, "those of one replica of three, however they were spread"
        both = [[*prompt, *first[name], 5] for name, prompt in prompts.items()]
        assert all(threads.map(served.complete, prompts, both))
    for name in prompts:
        status, told = served.ask(f"/api/sessions/{name}/reward", {"reward": 1.0, "group": name})
        assert (status, told["turns"], told["branches"]) == (200, 2, 1), name


def test_the_application_of_a_run_whose_owner_is_killed_ends_and_serve_stays(
    served: ServedRun, cluster: RayCluster
) -> None:
    served.until(lambda: len(served.replicas()) == NODES)
    replicas = served.replicas()
    served.run.owner().kill()
    assert psutil.wait_procs(replicas, timeout=90)[1] == []
    assert served.replicas() == []
    assert cluster.actor("ServeController").is_running()
