"""What a user gets wrong, at the real command line: one message that names the thing and the way out, the right
exit code, and nothing made or left. Nothing here starts Ray.
"""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamrl.config.schema import fields
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder

TASKS = """
import os, signal, subprocess
from streamrl.tasks.base import Prompt

class Task:
    name, num_train, num_held_out = "mine", 100, 10
    def __init__(self, held_out):
        pass
    def train(self, index):
        return Prompt(f"train-{index}", "1+2=")
    def held_out(self, index):
        return Prompt(f"held-out-{index}", "1+2=")
    def fingerprint(self):
        return "mine"

class LongPrompt(Task):
    def train(self, index):
        return Prompt(f"train-{index}", "1+" * 40 if index == 57 else "1+2=")

class RaisesPrompt(Task):
    def train(self, index):
        raise KeyError("no row")

class NoPrompt(Task):
    def train(self, index):
        return "1+2="

class Exits(Task):
    def __init__(self, held_out):
        print("goodbye")
        os._exit(3)

class Hangs(Task):
    def __init__(self, held_out):
        subprocess.Popen(["sleep", "1000"], cwd=os.environ["STREAMRL_IMPORT_PATH"])
        signal.pause()
"""
OWN_MODEL = ("--model.preset", "none", "--model.path", "model")
COMMANDS = ("status", "logs", "why", "eval", "export", "replay", "down")
Terminal = Callable[..., Any]


@pytest.fixture(scope="session")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Hugging Face folder that nothing is wrong with."""
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path_factory.mktemp("hub") / "model")


@pytest.fixture
def model(tmp_path: Path, whole_model: Path) -> Path:
    """A copy, `model` in the user's folder, to break."""
    return Path(shutil.copytree(whole_model, tmp_path / "model"))


def edit(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def assert_refused(done: Any, code: int, *says: str) -> None:
    """One message with all of this, on the terminal alone: no run folder, no process."""
    assert done.code == code, done.output
    assert done.output.startswith("streamrl: ")
    assert done.output.count("streamrl: ") == 1
    assert "Traceback" not in done.output
    for text in says:
        assert text in done.output
    assert not done.folder.exists()
    assert working_in(done.folder.parents[1]) == []


def working_in(folder: Path) -> list[str]:
    """Command lines of the processes whose current folder this is."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def test_a_broken_configuration_is_told_whole_by_file_and_line(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text('[model]\npreset = "tiny-qwen"\n[learner]\nstepz = 4\n')
    wrong = ('broken.toml:2: model.preset: no such preset (given "tiny-qwen")', "broken.toml:4: learner.stepz")
    assert_refused(terminal("up", "broken.toml"), 2, "2 problems", *wrong, "did you mean learner.steps?")
    (tmp_path / "torn.toml").write_text('[model]\npreset = "tiny\n')
    assert_refused(terminal("up", "torn.toml"), 2, "torn.toml:2: not valid TOML")
    assert_refused(terminal("up", "none.toml"), 2, "none.toml: cannot read it: No such file")


def test_a_missing_or_incomplete_model_folder_is_named(terminal: Terminal, tmp_path: Path, model: Path) -> None:
    nowhere = ("--model.preset", "none", "--model.path", "nowhere")
    assert_refused(terminal("up", "base.toml", *nowhere), 2, "model.path: no such folder: nowhere", "set model.preset")
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-100])
    done = terminal("up", "base.toml", *OWN_MODEL)
    assert_refused(done, 2, f"model.safetensors is cut off: it has {len(weights) - 100} bytes of {len(weights)}")


@pytest.mark.parametrize(
    ("eos", "eos_id", "says"),
    [
        (None, None, "has no end-of-sequence token; set eos_token in tokenizer_config.json"),
        ("</s>", None, "names '</s>' as its end-of-sequence token and does not have it; set eos_token"),
        (None, 99, "eos_token_id 99 in model is no token of the model, which has 22"),
    ],
)
def test_a_tokenizer_that_cannot_end_a_completion_is_refused(
    terminal: Terminal, model: Path, eos: str | None, eos_id: int | None, says: str
) -> None:
    edit(model / "tokenizer_config.json", eos_token=eos)
    edit(model / "config.json", eos_token_id=eos_id)
    (model / "generation_config.json").unlink()
    assert_refused(terminal("up", "base.toml", *OWN_MODEL), 2, says)


def test_a_prompt_longer_than_the_context_is_refused_of_a_built_in_task_and_of_ones_own(
    terminal: Terminal, tmp_path: Path, model: Path
) -> None:
    edit(model / "config.json", max_position_embeddings=10)
    says = ("base.toml:", "max_new_tokens", "pass the model's context of 10 tokens; set at most 3 (given 6)")
    assert_refused(terminal("up", "base.toml", *OWN_MODEL), 2, *says)
    (tmp_path / "own.py").write_text(TASKS)
    says = ("prompt train-57 has 81 tokens, and 58 fit", "lower max_new_tokens, or take a model with a longer")
    assert_refused(terminal("up", "base.toml", "--task.name", "own:LongPrompt"), 2, *says)


@pytest.mark.parametrize(
    ("key", "name", "code", "says"),
    [
        ("task.name", "nobody:Task", 2, "importing 'nobody' failed with ModuleNotFoundError"),
        ("task.name", "own:Tusk", 2, "the module has no 'Tusk'; did you mean 'Task'?"),
        ("task.name", "own:RaisesPrompt", 2, "task 'mine': train(0) raised KeyError: 'no row'"),
        ("task.name", "own:NoPrompt", 2, "task 'mine': train(0) gave '1+2='"),
        ("task.name", "own:Exits", 4, "ended its process by exit code 3; goodbye"),
        ("task.name", "own:Hangs", 4, "took longer than deadlines.start_s = 3"),
        ("reward.function", "dense:rewrad", 2, "the module has no 'rewrad'; did you mean 'reward'?"),
    ],
)
def test_a_task_or_reward_that_cannot_be_had_is_told_before_anything_starts(
    terminal: Terminal, tmp_path: Path, key: str, name: str, code: int, says: str
) -> None:
    (tmp_path / "own.py").write_text(TASKS)
    limit = ("--deadlines.start_s", "3") if name.endswith("Hangs") else ()
    assert_refused(terminal("up", "base.toml", f"--{key}", name, *limit), code, says)


@pytest.mark.parametrize(
    ("key", "value", "code", "says"),
    [
        ("rollout.kv_bytes", "1000", 2, "too little for 4 requests at full length (128.0 KiB); set at least 131072"),
        ("rollout.slots", "10000000", 3, "of memory free; lower the largest part:"),
        ("queue.byte_budget", "1000", 2, "set at least "),
        ("ray.object_store_bytes", str(2**50), 3, "free in /dev/shm; enlarge it"),
        ("queue.segment_bytes", str(2**50), 3, "free some, name another folder, or lower queue.segment_bytes"),
    ],
)
def test_too_little_for_one_request_is_configuration_and_more_than_the_machine_has_is_resources(
    terminal: Terminal, key: str, value: str, code: int, says: str
) -> None:
    large = ("--rollout.kv_bytes", str(2**50)) if key == "rollout.slots" else ()
    room = ("--queue.disk_budget", str(2**62)) if key == "queue.segment_bytes" else ()
    done = terminal("up", "base.toml", f"--{key}", value, *large, *room)
    assert_refused(done, code, "rollout.kv_bytes" if large else key, says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        # What statvfs says is checked before; a disk that fills up in between, or has no inodes, at the write.
        ("size=1m", "1.0 MiB free on the disk of runs; free some"),
        ("size=2g,nr_inodes=2", "cannot write runs/test"),
        ("size=2g,nr_inodes=5", "cannot write runs/test"),
    ],
)
def test_a_full_disk_at_the_start_is_a_resource_error_that_names_the_place(
    terminal: Terminal, tmp_path: Path, streamrl_path: Path, options: str, says: str
) -> None:
    command = f"mount -t tmpfs -o {options} tmpfs runs && exec {streamrl_path} up base.toml"
    done = on_a_small_disk(tmp_path, command, tmp_path / "runs")
    assert done.returncode == 3, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("streamrl: ")
    assert len(done.stderr.splitlines()) == 1
    assert working_in(tmp_path) == []


def test_a_full_temporary_folder_is_a_resource_error_that_names_it(
    terminal: Terminal, tmp_path: Path, streamrl_path: Path
) -> None:
    command = f"mount -t tmpfs -o size=1m tmpfs /mnt && TMPDIR=/mnt exec {streamrl_path} up base.toml"
    done = on_a_small_disk(tmp_path, command, Path("/mnt"))
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("streamrl: /mnt has 1048576 bytes free")
    assert "set TMPDIR to another folder" in done.stderr
    assert working_in(tmp_path) == []


def on_a_small_disk(folder: Path, command: str, place: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in a mount namespace of its own, or skip where this system gives us none."""
    place.mkdir(exist_ok=True)
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", str(place)]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("no user and mount namespaces here")
    shell = ["unshare", "-Urm", "sh", "-c", command]
    return subprocess.run(shell, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_no_key_names_a_port_of_ours_but_those_of_the_gateway_so_no_other_can_be_in_use() -> None:
    """Every listener of a local run is a Unix socket or bound to port 0; `test_ray_session_isolation` reads them."""
    ports = [leaf.name for leaf in fields.leaves() if "port" in leaf.name.split(".")[-1].split("_")]
    assert ports == ["gateway.port", "gateway.serve.port"]


def test_a_port_of_the_gateway_that_is_taken_is_named_with_the_way_out(terminal: Terminal) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = terminal("up", "base.toml", "--gateway.enabled", "true", "--gateway.port", str(port))
    assert done.code == 3, done.output
    assert f"the gateway cannot listen on 127.0.0.1:{port}: Address already in use" in done.output
    assert "set gateway.port to a free one, or to 0" in done.output
    assert not (done.folder / "run.json").exists()


def test_a_cluster_that_does_not_answer_is_named_at_once(terminal: Terminal) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer there
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = terminal("up", "base.toml", "--ray.address", address)
    assert done.code == 4
    assert f"nothing answers at ray.address = '{address}': [Errno 111]" in done.output
    assert done.output.count("nothing answers") == 1
    assert "or 'local', which starts one of its own" in done.output
    assert working_in(done.folder.parents[1]) == []


@pytest.mark.parametrize("content", ['{"schema": 99}', "{torn"])
def test_a_run_folder_of_another_schema_or_damaged_is_refused_and_left_as_it_is(
    terminal: Terminal, tmp_path: Path, content: str
) -> None:
    folder = tmp_path / "runs" / "test"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(content)
    says = "schema 99, and this streamrl reads schema 1" if "99" in content else "run.json is damaged"
    for command in ("up", *(COMMANDS if "99" in content else ())):
        done = terminal(command, "base.toml" if command == "up" else "test")
        assert done.code == 2, done.output
        assert says in done.output
        assert len(done.output.splitlines()) == 1
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"run.json": content}


def test_a_folder_that_is_no_run_is_refused_and_left_as_it_is(terminal: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "test"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    done = terminal("up", "base.toml")
    assert (done.code, "is no run folder, and holds thesis.txt; use --name" in done.output) == (2, True)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "..", "", ".hidden", "a b", "a\nb"])
def test_a_name_with_path_characters_is_refused(terminal: Terminal, name: str) -> None:
    assert_refused(terminal("up", "base.toml", "--name", name), 2, "command line: name: not ")


def test_a_mistyped_command_line_is_told_in_one_sentence(terminal: Terminal) -> None:
    assert_refused(terminal("frob"), 2, 'Unknown command "frob".', "See `streamrl --help`.")
    assert_refused(terminal("up"), 2, "--config requires an argument", "See `streamrl up --help`.")
    assert_refused(terminal("logs", "a", "b", "c"), 2, "logs has no use for 'c'.", "See `streamrl logs --help`.")
    assert_refused(terminal("status", "--frob"), 2, "Unknown option: --frob.", "See `streamrl status --help`.")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_not_there_is_named_with_those_that_are(terminal: Terminal, command: str) -> None:
    assert_refused(terminal(command, "nobody"), 2, "no run folder 'nobody', here or under runs/; runs there: none")
