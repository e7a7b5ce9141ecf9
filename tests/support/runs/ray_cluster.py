"""A Ray cluster of several nodes on one machine, with token authentication, in a process tree of its own.

Each node but the first has a folder of its own for runs, as a machine of its own would. Ray reads its settings when it
is imported: so the cluster is started by a script, which also ends with whoever started it.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SCRIPT = """
import json, sys
from ray.cluster_utils import Cluster

folders, resources = json.loads(sys.argv[1])
# A node that is gone is known to be within two seconds, and not within twenty.
health = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 500}
store = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**store, "include_dashboard": False, "_system_config": health})


def add(folder):
    # A folder of its own, as a machine would have: a node that comes would take what it unpacks from under the others.
    own = {"runtime_env_dir_name": f"resources-{folder.rsplit('-', 1)[-1]}"}
    node = cluster.add_node(**store, **own, resources=resources, env_vars={"STREAMRL_NODE_RUNS": folder})
    return [process.process.pid for kind in node.all_processes.values() for process in kind]


print(json.dumps([cluster.address, [add(folder) for folder in folders]]), flush=True)
for line in sys.stdin:
    print(json.dumps(add(json.loads(line))), flush=True)
cluster.shutdown()
"""


class RayCluster:
    """address: of the head. folders: of the other nodes, below which runs lie. environment: what a client needs."""

    def __init__(
        self,
        script: "subprocess.Popen[str]",
        address: str,
        folders: list[Path],
        raylets: list[list[psutil.Process]],
        environment: dict[str, str],
    ) -> None:
        self._script = script
        self._process = psutil.Process(script.pid)
        self.address = address
        self.folders = folders
        self.environment = environment
        self._raylets = raylets

    def add_node(self) -> None:
        """A further node, as the others, with a folder of its own."""
        folder = self.folders[-1].with_name(f"node-{len(self.folders)}")
        folder.mkdir()
        assert self._script.stdin is not None
        assert self._script.stdout is not None
        self._script.stdin.write(json.dumps(str(folder)) + "\n")
        self._script.stdin.flush()
        pids = json.loads(self._script.stdout.readline())
        self._raylets.append([psutil.Process(pid) for pid in pids])
        self.folders.append(folder)

    def processes(self, node: int) -> list[psutil.Process]:
        """All that runs on a node."""
        return [one for raylet in self._raylets[node] for one in (raylet, *_below(raylet))]

    def everything(self) -> list[psutil.Process]:
        """All that runs on any node."""
        return _below(self._process)

    def actor(self, name: str) -> psutil.Process:
        """The process of the only actor of a class, on whichever node."""
        (found,) = (one for one in _below(self._process) if _title(one).startswith(f"ray::{name}"))
        return found

    def pull_the_plug(self, node: int) -> None:
        """End a node at once, with all that runs on it, and take its disk away."""
        for process in self.processes(node):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.folders[node].rename(self.folders[node].with_name(f"{self.folders[node].name}-gone"))


def _title(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def ray_cluster(folder: Path, nodes: int, resources: dict[str, float]) -> Iterator[RayCluster]:
    """A head and `nodes` more, each with `resources`; their folders and the token lie in `folder`."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every listener on loopback
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "OMP_NUM_THREADS": "1",
    }
    folders = [folder / f"node-{number}" for number in range(nodes)]
    for one in folders:
        one.mkdir()
    arguments = json.dumps([[str(one) for one in folders], resources])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SCRIPT, arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )
    with process:
        assert process.stdout is not None
        try:
            address, pids = json.loads(process.stdout.readline())
            raylets = [[psutil.Process(pid) for pid in of_node] for of_node in pids]
            yield RayCluster(process, address, folders, raylets, environment)
        finally:
            everything = psutil.Process(process.pid).children(recursive=True)
            process.communicate()
            for left in psutil.wait_procs(everything, timeout=2.0)[1]:
                left.kill()
