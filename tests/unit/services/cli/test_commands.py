"""The command line as a user has it: exit codes, one message, no traceback, nothing heavy imported."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamrl.config import load_args
from streamrl.errors import RunFolderError
from streamrl.services.cli.main import run_app
from streamrl.services.commands import run_verbs
from streamrl.services.commands.exchange import evaluation
from streamrl.services.launch.claim import claim
from streamrl.services.run.control.listener import listen_at
from streamrl.services.run.control.server import ControlServer, EventHub
from streamrl.services.run.folder import Launch, RunFolder
from streamrl.services.run.liveness import ProcessId
from streamrl.services.run.read_logs import Tail, last_lines, log_files, readable

HEAVY = ("torch", "ray", "pyarrow", "numpy", "transformers", "asyncio")
CONFIG = '[model]\npreset = "tiny-qwen3"\n[rollout]\nengine = "scripted"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def run(tmp_path: Path, config: Path) -> RunFolder:
    """A run that was claimed once and never got further."""
    taken = claim(load_args(str(config), ["--runs", str(tmp_path / "runs")]))
    assert taken.lock is not None
    taken.lock.abandon()
    return taken.run


@pytest.fixture
def ending(tmp_path: Path, config: Path) -> Iterator[RunFolder]:
    """A run whose owner hears of one request, and ends: its summary is written and its lock free before it hangs up."""
    taken = claim(load_args(str(config), ["--runs", str(tmp_path / "runs")]))
    run, lock, me = taken.run, taken.lock, ProcessId.own()
    assert lock is not None
    lock.sign()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        control = f"{folder}/control"
        listening.bind(control)
        listening.listen()
        run.start_launch(Launch(owner=me, watcher=me, runtime=folder, control=control, started_ns=1))

        def end() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                run.write_summary({"eval_after": 0.9, "steps": 4})
                lock.abandon()

        with ThreadPoolExecutor(1) as beside:
            ended = beside.submit(end)
            yield run
            ended.result()


def write_rows(run: RunFolder, *rows: dict[str, Any]) -> None:
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("arguments", [["--help"], ["check", "CONFIG"], ["status", "RUN"], ["why", "RUN"]])
def test_light_commands_import_nothing_heavy(arguments: list[str], config: Path, run: RunFolder) -> None:
    write_rows(run, {"step": 1, "time/step": 0.1, "time/wait": 0.0})
    places = {"CONFIG": str(config), "RUN": str(run.path)}
    script = (
        "import sys; from streamrl.services.cli.main import run_app\n"
        f"code = run_app({[places.get(argument, argument) for argument in arguments]!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["frob"], 2, 'Unknown command "frob"'),
        (["check"], 2, "config"),
        (["check", "/none.toml"], 2, "/none.toml"),
        (["check", "CONFIG", "--learner.stepz", "5"], 2, "learner.stepz"),
        (["check", "CONFIG", "--rollout.engine", "tensorrt"], 2, "scripted"),
        (["check", "CONFIG", "--observe.trackers", '["swanlab"]'], 2, "observe.trackers: swanlab: "),
        (["up", "CONFIG", "--observe.trackers", '["swanlab"]'], 2, "observe.trackers: swanlab: "),
        (["check", "CONFIG", "--observe.trackers", '["swonlab"]'], 2, 'did you mean "swanlab"?'),
        (["up", "CONFIG", "--seed", "-1"], 2, "seed"),
        (["check", "CONFIG", "--ray.object_store_bytes", str(2**50)], 3, "ray.object_store_bytes"),
        (["status", "/none"], 2, "no run folder '/none'"),
        (["down", "/none"], 2, "no run folder"),
        (["eval", "RUN"], 2, "is not up"),
        (["why", "RUN"], 2, "has no step yet"),
        (["logs", "RUN", "nobody"], 2, "no log of 'nobody'"),
    ],
)
def test_a_mistake_is_one_message_and_the_right_exit_code(
    arguments: list[str], code: int, says: str, config: Path, run: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"CONFIG": str(config), "RUN": str(run.path)}
    assert run_app([places.get(argument, argument) for argument in arguments]) == code
    out, err = capfd.readouterr()
    assert says in out + err
    assert "Traceback" not in out + err


def test_check_prints_the_resolved_configuration_as_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlay = config.with_name("more.toml")
    overlay.write_text("[learner]\nsteps = 3\n")
    rest = ["@", str(overlay), "--learner.optimizer.lr", "1e-5", "--name", "mine", "--json"]
    assert run_app(["check", str(config), *rest]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert (checked["name"], checked["learner"]["steps"]) == ("mine", 3)
    assert checked["learner"]["optimizer"]["lr"] == 1e-5


def test_up_on_a_finished_run_prints_the_summary_and_starts_nothing(
    config: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write_summary({"eval_before": 0.4, "eval_after": 0.93})
    arguments = ["up", str(config), "--runs", str(run.path.parent)]
    assert run_app(arguments) == 0
    assert "0.400 -> 0.930" in capsys.readouterr().out
    assert run_app([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_after"] == 0.93
    assert run_app([*arguments, "--seed", "5"]) == 2
    assert "differs in seed" in capsys.readouterr().err
    assert RunFolder.open(run.path).record.launch is None


def test_up_on_a_folder_in_use_is_exit_code_2_with_the_pid(
    config: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = claim(load_args(str(config), ["--runs", str(run.path.parent)]))
    assert run_app(["up", str(config), "--runs", str(run.path.parent)]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    assert taken.lock is not None
    taken.lock.abandon()


def test_status_of_a_run_that_ends_at_that_moment_says_how(ending: RunFolder) -> None:
    told = run_verbs.status(ending)
    assert (told["state"], told["summary"]) == ("finished", {"eval_after": 0.9, "steps": 4})


async def test_status_of_a_run_whose_socket_was_removed_waits_until_it_is_there_again(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_verbs, "_BACK_S", 0.5)
    taken = claim(load_args(str(config), ["--runs", str(tmp_path / "runs")]))
    run, lock, me = taken.run, taken.lock, ProcessId.own()
    assert lock is not None
    lock.sign()
    tries = 0

    async def answer() -> dict[str, Any]:
        return {"step": 3}

    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / "control"
        run.start_launch(Launch(owner=me, watcher=me, runtime=folder, control=str(control), started_ns=1))
        async with ControlServer(listen_at(control), EventHub(), {"status": answer}) as server:
            control.unlink()
            ask = asyncio.create_task(asyncio.to_thread(run_verbs.status, run))
            while not ask.done():
                tries += 1
                await asyncio.wait([ask], timeout=0.25)
                await server.restore()
            assert ask.result()["step"] == 3
    lock.abandon()
    assert tries > 1, "it was asked before the socket was there again"


def test_status_of_a_run_that_is_not_up_comes_from_its_files(run: RunFolder) -> None:
    assert run_verbs.status(run)["state"] == "new"
    write_rows(run, {"step": 1}, {"step": 2, "reward/mean": 0.5})
    assert run_verbs.status(run)["last"]["step"] == 2
    failure = {"component": "learner", "phase": "step 3", "version": "0.2", "cause": "loss is nan", "time_ns": 1}
    run.failure_path.write_text(json.dumps(failure))
    assert run_verbs.status(run)["state"] == "failed"
    assert "loss is nan" in run_verbs.status(run)["cause"]
    run.failure_path.unlink()
    run.write_summary({"eval_after": 0.9, "steps": 4})
    assert run_verbs.status(run)["summary"] == {"eval_after": 0.9, "steps": 4}
    assert evaluation.evaluate(run) == {"run": "run", "eval/score": 0.9, "step": 4}


def test_why_explains_the_rows_of_the_run(run: RunFolder) -> None:
    write_rows(run, *({"step": step, "time/step": 0.2, "time/wait": 0.1} for step in range(1, 5)))
    assert [finding["kind"] for finding in run_verbs.why(run)] == ["bound by generation"]


def test_down_of_a_run_that_is_not_up_removes_leftovers_of_a_killed_one(run: RunFolder) -> None:
    leftover = Path("/dev/shm") / f"{run.shared_memory_prefix}-v3"
    leftover.touch()
    assert run_verbs.down(run) == {"run": "run", "was_up": False, "state": "new"}
    assert not leftover.exists()


def test_logs_show_the_last_lines_of_one_part_readably(run: RunFolder) -> None:
    record = {"timestamp": "12:00", "level": "info", "event": "swapped", "version": "0.3", "component": "rollout-0"}
    (run.logs_path / "rollout-0.log").write_text("old\n" + json.dumps(record) + "\nTraceback: as it is\n")
    (run.logs_path / "reward.log").write_text("scored\n")
    shown: list[tuple[str, str]] = []
    run_verbs.show_logs(run, "rollout", count=2, follow=True, show=lambda *line: shown.append(line))
    assert shown == [("rollout-0", "12:00 info    swapped  version=0.3"), ("rollout-0", "Traceback: as it is")]
    assert [path.stem for path in log_files(run.logs_path, None)] == ["reward", "rollout-0"]
    with pytest.raises(RunFolderError, match="there are: reward, rollout-0"):
        log_files(run.logs_path, "roll")


def test_the_last_lines_of_a_long_file_are_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(5000)))
    assert [line.split()[1] for line in last_lines(path, 3)] == ["4997", "4998", "4999"]
    path.write_text("only")
    assert last_lines(path, 3) == ["only"]


def test_a_followed_log_gives_whole_lines_only_and_starts_anew_when_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\n")
    tail = Tail(path)
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert list(tail.new_lines()) == ["one"]
        file.write("o\n")
        file.flush()
        assert list(tail.new_lines()) == ["two"]
    path.write_text("x\n")
    assert list(tail.new_lines()) == ["x"]
    assert readable("[1]") == "[1]"
