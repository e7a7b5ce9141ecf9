"""A run as a container starts it: process 1 of its own process namespace, another user, a read-only root, 64 MiB of
/dev/shm, and nothing writable but the run's home and /tmp."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.deploy.stand_in_slurm import read_until
from support.repository import ROOT
from support.runs.live_run import LIMIT_S, prepare

from streamrl.learner.checkpoint.checkpoint import find_newest
from streamrl.observability.metrics import read_metrics
from streamrl.services.run.folder import RunFolder, RunState

USER = 4321
# Packages of these tests may lie where no other user looks: it may read everything, as an image would let it, and write
# nothing that is not its own.
ENTER = f"""
mount --bind "$1" "$1"
mount -t tmpfs -o size=64m,mode=1777 none /dev/shm
mount -o remount,bind,ro /
cd "$1"
shift
exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all,+dac_read_search \
  --ambient-caps=-all,+dac_read_search "$@"
"""
UP = (sys.executable, "-P", "-m", "streamrl.services.cli.main", "up", "base.toml", "--gateway.enabled", "true")
SMALL = ("--rollout.replicas", "1", "--eval.max_items", "8", "--eval.every", "1000", "--checkpoint.every", "1000")


def lacks() -> str:
    """What this machine has not for it, "" where it has all."""
    if os.geteuid() != 0:
        return "root"
    return next((name for name in ("unshare", "setpriv") if shutil.which(name) is None), "")


pytestmark = pytest.mark.skipif(bool(lacks()), reason=f"this machine has no {lacks()}")


@pytest.fixture
def home() -> Iterator[Path]:
    """The run's home, on the root's own file system: /tmp is another one in a container."""
    home = Path("/var/tmp") / f"streamrl-home-{os.getpid()}"
    (home / "runs").mkdir(parents=True)
    prepare(home)
    for path in (home, *home.rglob("*")):
        os.chown(path, USER, USER)
    yield home
    shutil.rmtree(home)


def own_tmp() -> str:
    """What gives the container a /tmp of its own. A checkout below the machine's keeps its place, to be read: it is
    opened before that is covered, and mounted by what was opened."""
    mount = "mount -t tmpfs -o mode=1777 none /tmp"
    if not ROOT.is_relative_to("/tmp"):
        return mount
    place = shlex.quote(str(ROOT))
    again = f"mount --no-canonicalize --bind /proc/self/fd/9 {place}\nmount -o remount,bind,ro {place}"
    return f"exec 9< {place}\n{mount}\nmkdir -p {place}\n{again}\nexec 9<&-"


@contextmanager
def container(home: Path, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """`command` as process 1; killed at the end with all below it, if it still runs."""
    started = subprocess.Popen(
        [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            f"set -e\n{own_tmp()}\n{ENTER}",
            "sh",
            home,
            *command,
        ],
        env={**os.environ, "HOME": "/", "USER": "streamrl", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def process_1(process: "subprocess.Popen[str]") -> psutil.Process:
    """Of the container, as it is called outside."""
    (first,) = psutil.Process(process.pid).children()
    return first


@pytest.mark.ray
def test_it_trains_thirty_steps(home: Path) -> None:
    with container(home, *UP, *SMALL, "--learner.steps", "30") as process:
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, said
    assert json.loads((home / "runs/test/summary.json").read_text())["steps"] == 30
    assert {path.stat().st_uid for path in (home / "runs/test").iterdir()} == {USER}


@pytest.mark.ray
def test_sigterm_to_process_1_commits_a_checkpoint_within_its_time_and_exits_with_143(home: Path) -> None:
    with container(home, *UP, *SMALL, "--learner.steps", "100000") as process:
        read_until(process, "/100000  ")
        process_1(process).send_signal(signal.SIGTERM)
        # A container is killed `stop_grace_period` later: deadlines.stop_s, 10 s, and 15 more.
        said, _ = process.communicate(timeout=25)
        assert process.returncode == 143, said
    run = RunFolder.open(home / "runs/test")
    assert run.state() is RunState.INTERRUPTED
    newest = find_newest(run.checkpoints_path).newest
    assert newest is not None
    assert newest.version.step == read_metrics(run.metrics_path)[-1]["step"] > 0


def test_process_1_without_an_init_takes_the_exit_codes_of_orphans(home: Path) -> None:
    program = """
import os, signal, subprocess, sys
from streamrl.services.cli.first_process import be_init_as_process_1
assert os.getpid() == 1
be_init_as_process_1()
reader, writer = os.pipe()
between = "import subprocess; print(subprocess.Popen(['cat'], stdout=subprocess.DEVNULL).pid, flush=True)"
told = subprocess.run([sys.executable, "-S", "-c", between], stdin=reader, stdout=subprocess.PIPE, check=True)
orphan = int(told.stdout)
parent = int(open(f"/proc/{orphan}/stat").read().rpartition(")")[2].split()[1])
os.kill(orphan, signal.SIGKILL)
while os.path.exists(f"/proc/{orphan}"):  # dead and not reaped it is there
    os.sched_yield()
print(f"its parent was {parent}, and it is reaped")
sys.exit(7)
"""
    with container(home, sys.executable, "-c", program) as process:
        said, _ = process.communicate(timeout=60)
        assert (process.returncode, said) == (7, "its parent was 1, and it is reaped\n")
