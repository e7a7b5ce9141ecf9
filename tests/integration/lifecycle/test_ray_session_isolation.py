"""A local Ray of ours on a machine that has another: it listens on loopback only and touches nothing of the
other's.
"""

import ipaddress
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streamrl.errors import ConfigError
from streamrl.services.launch import ray_session
from streamrl.services.run.folder import RunFolder

pytestmark = pytest.mark.ray
# A Ray as anybody starts it, with Ray's own defaults; it answers for as long as its stdin lives.
STRANGER = """
import sys, ray
address = ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False).address_info
print(address["gcs_address"], flush=True)
for _ in sys.stdin:
    print(ray.get(ray.remote(num_cpus=0)(lambda: 42).remote()), flush=True)
"""
OURS = """
import sys, json
from pathlib import Path
from streamrl.services.launch import ray_session
from streamrl.services.run.folder import RunFolder
from streamrl.config.schema.run import RayConfig
run = RunFolder.open(Path(sys.argv[1]))
session = ray_session.start(run, RayConfig(num_cpus=1), Path(sys.argv[2]))
import ray
assert ray.get(ray.remote(num_cpus=0)(lambda: 1).remote()) == 1
print(json.dumps([session.address, session.notices]), flush=True)
sys.stdin.read()
ray_session.stop()
"""


JOINS = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(num_cpus=0)(lambda: 42).remote()), flush=True)
"""

JOIN_S = 30
"""Several times what it takes with the token."""


JOB = {
    "RAY_ADDRESS": "10.0.0.1:6379",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"working_dir": "gcs://job.zip"}, "metadata": {}}',
}
"""What a driver of a Ray job finds in its environment."""


class Process:
    """A script that prints a first line when it is ready and ends with its stdin."""

    def __init__(self, script: str, *arguments: str, folder: Path, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        )
        self.first_line = self.line()

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def ask(self) -> str:
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        return self.line()

    def end(self) -> None:
        """Let it end by itself, and end what it leaves: Ray's agents would live on for a minute."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        self.popen.communicate(timeout=30)
        for child in psutil.wait_procs(children, timeout=0.5)[1]:
            child.kill()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Process]:
    started = Process(STRANGER, folder=tmp_path, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    yield started
    started.end()


def test_ours_is_on_loopback_with_a_token_and_leaves_a_stranger_alone(tmp_path: Path, stranger: Process) -> None:
    folder, runtime = tmp_path / "run", Path(f"/tmp/srl-test-{os.getpid()}")
    folder.mkdir()
    run = RunFolder.create(folder, "run")
    # As in a Ray job of the stranger's.
    ours = Process(OURS, str(folder), str(runtime), folder=tmp_path, **JOB | {"RAY_ADDRESS": stranger.first_line})
    try:
        address, notices = json.loads(ours.first_line)
        assert address != stranger.first_line
        assert any("RAY_ADDRESS" in notice for notice in notices)
        assert run.token_path.stat().st_mode & 0o777 == 0o600
        assert_loopback_only(psutil.Process(ours.popen.pid))
        assert_no_worker_is_starved(psutil.Process(ours.popen.pid))
    finally:
        ours.end()
        shutil.rmtree(runtime)
    assert stranger.ask() == "42"


@pytest.mark.long
def test_who_has_not_its_token_cannot_join_ours(tmp_path: Path) -> None:
    folder, runtime = tmp_path / "run", Path(f"/tmp/srl-test-{os.getpid()}")
    folder.mkdir()
    run = RunFolder.create(folder, "run")
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    ours = Process(OURS, str(folder), str(runtime), folder=tmp_path)
    try:
        address, _ = json.loads(ours.first_line)
        assert said_by_joining(address, with_token(run.token_path), tmp_path) == "42\n"
        for refused in (with_token(wrong), {**with_token(wrong), "RAY_AUTH_MODE": "disabled"}):
            assert said_by_joining(address, refused, tmp_path) == "", refused
    finally:
        ours.end()
        shutil.rmtree(runtime)


def with_token(path: Path) -> dict[str, str]:
    """The environment of one of ours whose token is in `path`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ray_session.prepare_local(environment, path.resolve())
    return environment


def said_by_joining(address: str, environment: dict[str, str], folder: Path) -> str:
    """What somebody on this machine computes who joins a Ray; nothing when he is refused, or still tries to get in."""
    command = [sys.executable, "-P", "-c", JOINS, address]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as joining:
        try:
            return joining.communicate(timeout=JOIN_S)[0]
        except subprocess.TimeoutExpired:
            joining.kill()
            return joining.communicate()[0]


def assert_loopback_only(root: psutil.Process) -> None:
    listening = {}
    for process in [root, *root.children(recursive=True)]:
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                listening[connection.laddr.port] = ipaddress.ip_address(connection.laddr.ip)
    assert len(listening) >= 4, "gcs, raylet, agents and driver listen; none seen means none looked at"
    outside = {port: str(ip) for port, ip in listening.items() if not is_loopback(ip)}
    assert outside == {}


def assert_no_worker_is_starved(root: psutil.Process) -> None:
    workers = [one for one in root.children(recursive=True) if one.name().startswith("ray::IDLE")]
    assert workers
    assert {one.nice() for one in workers} == {root.nice()}


def is_loopback(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


@pytest.mark.parametrize("names", [("RAY_ADDRESS",), tuple(JOB)], ids=len)
def test_a_foreign_ray_in_the_environment_is_removed_and_said_so(names: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"PATH": "/bin", **{name: JOB[name] for name in names}}
    notices = ray_session.prepare_local(environment, tmp_path / "token")
    assert not set(names) & set(environment)
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert all(f"{name} in the environment is ignored" in said for name, said in zip(names, notices, strict=True))


def test_auto_is_the_cluster_of_the_ray_job_and_nothing_else() -> None:
    assert ray_session.cluster_address("auto", JOB) == "10.0.0.1:6379"
    assert ray_session.cluster_address("10.0.0.2:6379", JOB) == "10.0.0.2:6379"
    for environment in ({}, {"RAY_ADDRESS": "10.0.0.1:6379"}):
        with pytest.raises(ConfigError, match='"auto" is for a Ray job'):
            ray_session.cluster_address("auto", environment)


def test_a_job_that_is_joined_leaves_the_working_folder_to_the_run() -> None:
    environment = dict(JOB)
    ray_session.prepare_join(environment)
    assert environment["RAY_OVERRIDE_JOB_RUNTIME_ENV"] == "1"


def test_joining_a_cluster_uses_the_token_of_the_environment() -> None:
    with_token, without = {"RAY_AUTH_TOKEN_PATH": "/x"}, {"PATH": "/bin"}
    assert ray_session.prepare_join(with_token)
    assert with_token["RAY_AUTH_MODE"] == "token"
    assert not ray_session.prepare_join(without)
    assert "RAY_AUTH_MODE" not in without
