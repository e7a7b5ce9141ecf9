"""The batch script, by shellcheck, and as Slurm would run it: stand-ins for its programs start real processes."""

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.deploy.checked import program
from support.deploy.sample_kits import DEPLOY
from support.deploy.stand_in_slurm import Slurm, read_until
from support.runs.live_run import prepare

from streamrl.services.cli.main import run_app
from streamrl.services.run.folder import RunFolder, RunState

LIMIT_S = 240
STEPS = ("--learner.steps", "300", "--checkpoint.every", "1000", "--rollout.replicas", "1", "--eval.every", "1000")
# In the place of streamrl: trains until it is told to stop, then has its word, or ends by itself.
TRAINS = """#!/usr/bin/env python3
import json, os, signal, sys
print("up", *sys.argv[1:], flush=True)
print("token", os.environ.get("RAY_AUTH_TOKEN_PATH"), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
code = os.environ.get("EXIT_CODE")
if code:
    sys.exit(int(code))
print("trains", flush=True)
while True:
    signal.pause()
"""
# In the place of Ray: a node lives until it is ended; there are as many as were started.
RAY = """#!/usr/bin/env python3
import os, signal, sys
folder = os.path.dirname(sys.argv[0])
nodes = os.path.join(folder, "nodes")
os.makedirs(nodes, exist_ok=True)
if sys.argv[1] == "start":
    with open(os.path.join(nodes, f"{os.getpid()}"), "w") as file:
        print(*sys.argv[1:], file=file)
        print(os.environ["RAY_AUTH_TOKEN_PATH"], os.environ["STREAMRL_NODE_RUNS"], file=file)
    while True:
        signal.pause()
for number, name in enumerate(os.listdir(nodes), 1):
    print(f" {number} node_{name}")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, in which the script is made."""
    home = tmp_path / "home"
    home.mkdir()
    prepare(home)
    monkeypatch.chdir(home)
    return home


def slurm(tmp_path: Path, **environment: str) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Slurm(folder, **environment)


def script(*keys: str) -> Path:
    # A job is queued again on other nodes, which do not see a temporary folder: of a test it is the right one.
    assert run_app(["deploy", "slurm", "base.toml", *keys, "--out", "files"]) == 0
    return Path("files/run.sbatch").absolute()


def several_nodes(replicas: int) -> tuple[str, ...]:
    where = ("--ray.address", "auto", "--rollout.resources", "{ rollout-node = 1 }")
    return (*where, "--rollout.replicas", str(replicas))


@pytest.mark.parametrize("path", [DEPLOY / "slurm/run.sbatch", None], ids=["several nodes", "one node"])
def test_shellcheck_finds_no_fault(home: Path, path: Path | None) -> None:
    command = [program("shellcheck"), "--severity", "style", path or script()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("code", [0, 2, 4])
def test_the_job_ends_as_the_run_ends(home: Path, tmp_path: Path, code: int) -> None:
    job = slurm(tmp_path, EXIT_CODE=str(code))
    job.program("streamrl", TRAINS if code else "#!/bin/sh\nexit 0\n")
    with job.job(script(), home) as process:
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == code
    assert [line.partition(" ")[0] for line in job.asked()] == ["srun"]


@pytest.mark.parametrize(
    ("number", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)], ids=["notice", "preempted"]
)
def test_a_signal_stops_the_run_and_a_notice_queues_the_job_again(
    home: Path, tmp_path: Path, number: signal.Signals, requeued: bool
) -> None:
    job = slurm(tmp_path)
    job.program("streamrl", TRAINS)
    with job.job(script(), home) as process:
        read_until(process, "trains")
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 143
    assert ("requeue 4711" in job.asked()) == requeued


def test_a_run_that_fails_after_a_notice_is_not_queued_again(home: Path, tmp_path: Path) -> None:
    job = slurm(tmp_path)
    job.program("streamrl", TRAINS.replace("sys.exit(143)", "sys.exit(4)"))
    with job.job(script(), home) as process:
        read_until(process, "trains")
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 4
    assert "requeue 4711" not in job.asked()


def test_several_nodes_join_one_ray_with_a_token_that_is_gone_afterwards(home: Path, tmp_path: Path) -> None:
    job = slurm(tmp_path)
    job.program("streamrl", TRAINS)
    job.program("ray", RAY)
    with job.job(script(*several_nodes(3)), home, nodes=4) as process:
        said = read_until(process, "trains")
        assert f"up up files/run.toml --ray.address 10.0.0.7:{20000 + 4711}" in said
        nodes = [path.read_text() for path in (job.folder / "nodes").iterdir()]
        assert len([node for node in nodes if "--head" in node]) == 1
        workers = [node for node in nodes if '--resources={"rollout-node": 1}' in node]
        assert len(workers) == 3
        token = Path(said.partition("token ")[2].splitlines()[0])
        assert {node.splitlines()[1] for node in nodes} == {f"{token} /tmp/streamrl-4711"}
        assert (len(token.read_text()), stat.S_IMODE(token.stat().st_mode)) == (64, 0o600)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 143
    assert not token.exists()
    pids = [int(path.name) for path in (job.folder / "nodes").iterdir()]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


HEAD_ALONE = RAY.replace('if sys.argv[1] == "start":', 'if sys.argv[1] == "start" and "--head" in sys.argv:')


def test_while_nodes_are_waited_for_a_notice_queues_the_job_again(home: Path, tmp_path: Path) -> None:
    job = slurm(tmp_path)
    job.program("ray", HEAD_ALONE)
    with job.job(script(*several_nodes(1)), home, nodes=2) as process:
        read_until(process, "waiting for 2 nodes to join Ray")
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 143
    assert "requeue 4711" in job.asked()


def test_a_node_that_does_not_join_in_time_ends_the_job(home: Path, tmp_path: Path) -> None:
    job = slurm(tmp_path, STREAMRL_JOIN_S="0")
    job.program("ray", HEAD_ALONE)
    with job.job(script(*several_nodes(1)), home, nodes=2) as process:
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 3
    assert "not all of 2 nodes have joined Ray" in said


@pytest.mark.ray
def test_a_real_run_commits_a_checkpoint_on_a_notice_and_goes_on_when_the_job_starts_again(
    home: Path, tmp_path: Path
) -> None:
    job = slurm(tmp_path)
    job.program("streamrl", f'#!/bin/sh\nexec {sys.executable} -P -m streamrl.services.cli.main "$@"\n')
    made = script(*STEPS)
    run = home / "runs/test"
    with job.job(made, home) as process:
        read_until(process, "/300  ")
        process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 143, said
    assert "requeue 4711" in job.asked()
    assert RunFolder.open(run).state() is RunState.INTERRUPTED
    assert list((run / "checkpoints").iterdir())
    with job.job(made, home) as process:
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, said
    assert "resuming run test (interrupted), launch 1" in said
    assert json.loads((run / "summary.json").read_text())["steps"] == 300
