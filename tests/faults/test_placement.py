"""Replicas on a cluster: a demand that no node can meet is refused, packed ones share a node, and one that waits
is told with what there is."""

import signal
import subprocess
from pathlib import Path

import pytest
from support.runs.live_run import live_run, prepare
from support.runs.ray_cluster import ray_cluster

from streamrl.services.run.folder import RunFolder

pytestmark = pytest.mark.ray

OPTIONS = ("--rollout.engine", "scripted", "--learner.steps", "100000", "--eval.every", "100000")
PACKED = ("--rollout.placement", "pack", "--rollout.resources", "{ rollout-node = 1 }")


@pytest.mark.long
def test_an_impossible_demand_is_refused_and_packed_replicas_share_a_node(tmp_path: Path, streamrl_path: Path) -> None:
    prepare(tmp_path)
    with ray_cluster(tmp_path, 2, {"rollout-node": 2}) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        address = ("--ray.address", cluster.address)
        demand = ("--rollout.resources", "{ rollout-node = 3 }")
        command = [streamrl_path, "up", "base.toml", "--name", "refused", *OPTIONS, *demand, *address]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 3, done.stderr
        assert "a replica takes { rollout-node = 3 } of its node, and no node has as much" in done.stderr
        assert done.stderr.count("rollout-node 2 of 2") == 2, "each node with what it has"

        with live_run(tmp_path, streamrl_path, "packed", *OPTIONS, *PACKED, *address) as run:
            assert run.read_until(lambda event: len(event.get("replicas", [])) == 2), (run.events[-3:], run.end())
            logs = [folder / RunFolder.open(run.folder).run_id / "logs" for folder in cluster.folders]
            assert sorted(len(list(folder.glob("rollout-*.log"))) for folder in logs) == [0, 2]
            scaled = subprocess.run([streamrl_path, "scale", run.folder, "rollout=5"], capture_output=True, timeout=60)
            assert scaled.returncode == 0, scaled.stderr
            assert run.read_until(lambda event: "has no process yet after 30 s" in event.get("text", "")), run.events[
                -3:
            ]
            run.process.send_signal(signal.SIGINT)
            code, err = run.end()
    assert code == 130, err
    told, *_ = [text for text in run.notices() if "has no process yet" in text]
    assert "it takes { rollout-node = 1 } of its node; free of what each node has: " in told
    assert told.count("rollout-node 0 of 2") == 2, told
