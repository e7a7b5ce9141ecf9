"""The life of a run's processes on a real local Ray, around a small system: whoever dies how, nothing of it
stays.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from streamrl.services.run.folder import RunFolder, RunState

pytestmark = pytest.mark.ray
HERE = Path(__file__).parent
# What the issue promises: from the death of any part to nothing left.
GONE_S = 10.0
CONFIG = """
[model]
preset = "tiny-qwen3"
[rollout]
engine = "scripted"
[ray]
num_cpus = 1
"""


class Up:
    """One `up --json` process and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str], run: Path) -> None:
        self.process = process
        self.run = run
        self.events: list[dict[str, object]] = []

    def wait_for(self, **facts: object) -> None:
        """Read events until one has these facts."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if facts.items() <= self.events[-1].items():
                return
        assert self.process.stderr is not None
        pytest.fail(f"no event {facts} in {self.events}; {self.process.stderr.read()}")

    def end(self) -> tuple[int, str]:
        """Wait for the end: exit code and what was said on stderr."""
        out, err = self.process.communicate(timeout=60)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, err


class Traces:
    """Everything that a running run has outside its folder."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder.open(path)
        launch = self.run.record.launch
        assert launch is not None
        self.runtime = Path(launch.runtime)
        self.owner = psutil.Process(launch.owner.pid)
        self.watcher = psutil.Process(launch.watcher.pid)
        self.processes = [self.watcher, *self.watcher.children(recursive=True)]

    def assert_gone_in_time(self) -> None:
        started = time.monotonic()
        _, alive = psutil.wait_procs(self.processes, timeout=GONE_S)
        assert alive == [], f"after {time.monotonic() - started:.1f} s"
        assert self.run.shared_memory_files() == []
        assert not self.runtime.exists()
        assert RunFolder.open(self.run.path).state() is not RunState.RUNNING


@contextmanager
def running(folder: Path, *flags: str, **script: object) -> Iterator[Up]:
    """A run that was brought up; `script` is the small system's."""
    config = folder / "run.toml"
    config.write_text(CONFIG)
    arguments = [str(config), "--runs", str(folder), "--name", "life", "--json", *flags]
    environment = {**os.environ, "STREAMRL_FAKE": json.dumps(script), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(HERE / "fake_up.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield Up(process, folder / "life")
        finally:
            process.kill()


def streamrl(*arguments: str) -> dict[str, object]:
    """One command of the real command line, as JSON."""
    command = [sys.executable, "-P", "-m", "streamrl.services.cli.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ctrl_c_stops_cleanly_and_up_resumes_and_then_shows_the_summary(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.wait_for(kind="step")
        traces = Traces(up.run)
        assert len(traces.run.shared_memory_files()) == 1
        up.process.send_signal(signal.SIGINT)
        assert up.end()[0] == 130
        traces.assert_gone_in_time()
        assert up.events[-1]["how"] == "stopped"
    with running(tmp_path, steps=3) as again:
        assert again.end()[0] == 0
        assert RunFolder.open(again.run).incarnation == 1
        assert again.events[-1]["summary"]["wall_s"] > 0
    with running(tmp_path, steps=3) as finished:
        code, _ = finished.end()
        assert (code, finished.events[0]["eval_after"]) == (0, 0.75)


def test_sigterm_stops_cleanly_however_often_it_comes_and_exits_with_143(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.wait_for(kind="step")
        traces = Traces(up.run)
        for _ in range(3):
            up.process.terminate()
        code, told = up.end()
        assert code == 143
        assert "stopping, as SIGTERM asks" in told
        traces.assert_gone_in_time()
        assert up.events[-1]["how"] == "stopped"


@pytest.mark.long
def test_a_run_whose_gateways_port_was_taken_meanwhile_is_refused_and_resumes_when_it_is_free(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--gateway.enabled", "true", "--gateway.port", str(port))
    with running(tmp_path, *flags) as up:
        up.wait_for(kind="step")
        up.process.send_signal(signal.SIGINT)
        assert up.end()[0] == 130
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with running(tmp_path, *flags, steps=3) as refused:
            code, err = refused.end()
        assert code == 3
        assert f"the gateway cannot listen on 127.0.0.1:{port}: Address already in use" in err
        assert RunFolder.open(refused.run).state() is not RunState.RUNNING
    with running(tmp_path, *flags, steps=3) as again:
        code, err = again.end()
        assert code == 0, err


def test_a_second_ctrl_c_ends_a_run_that_does_not_stop(tmp_path: Path) -> None:
    with running(tmp_path, stuck=True) as up:
        up.wait_for(kind="step")
        traces = Traces(up.run)
        up.process.send_signal(signal.SIGINT)
        up.wait_for(kind="phase", name="stopping")
        up.process.send_signal(signal.SIGINT)
        assert up.end()[0] == 130
        traces.assert_gone_in_time()


def test_up_ends_with_the_owner_when_the_watcher_is_killed_and_goes_on_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.wait_for(kind="step")
        traces = Traces(up.run)
        traces.watcher.kill()
        assert up.end()[0] == 130
        assert RunFolder.open(up.run).state() is not RunState.RUNNING
    with running(tmp_path, steps=3) as again:
        code, err = again.end()
        assert code == 0, err


@pytest.mark.parametrize("victim", ["up", "owner"])
def test_kill_9_leaves_nothing(tmp_path: Path, victim: str) -> None:
    with running(tmp_path) as up:
        up.wait_for(kind="step")
        traces = Traces(up.run)
        (up.process if victim == "up" else traces.owner).kill()
        traces.assert_gone_in_time()
        code, err = up.end()
    if victim == "owner":
        assert code == 4
        assert "the owner process of run life ended by signal 9" in err
        assert "Traceback" not in err


def test_a_failed_part_gives_exit_code_4_and_the_first_cause_without_a_traceback(tmp_path: Path) -> None:
    with running(tmp_path, fail_at=3) as up:
        code, err = up.end()
        assert code == 4
        assert "learner failed at version 0.3: the loss is nan" in err
        assert "Traceback" not in err
        assert RunFolder.open(up.run).state() is RunState.FAILED


def test_a_detached_run_answers_until_down_and_a_second_up_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "--detach") as up:
        assert up.end()[0] == 0
        run = str(up.run)
        traces = Traces(up.run)
        facts = streamrl("status", run)
        assert (facts["state"], facts["phase"]) == ("running", "running")
        assert streamrl("eval", run)["eval/score"] == 0.5
        assert streamrl("eval", run, "--k", "4")["held-out@4"]["pass@4"] == 0.75
        assert streamrl("status", run)["evaluations"]["held-out@4"]["pass@4"] == 0.75
        with running(tmp_path) as second:
            code, err = second.end()
        assert code == 2
        assert f"in use by process {traces.owner.pid}" in err
        assert streamrl("down", run) == {"run": "life", "was_up": True, "state": "interrupted"}
        traces.assert_gone_in_time()
        assert streamrl("status", run)["state"] == "interrupted"
