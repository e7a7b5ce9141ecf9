"""The tutorials: short, of commands that exist, and of configurations that are right but for what this machine lacks.

`tests/integration/tutorials` runs those that a CPU can run.
"""

import shlex
from pathlib import Path

import pytest
from support.runs.finished_run import run
from support.runs.tutorials import TUTORIALS, Tutorial

from streamrl.config import load
from streamrl.config.estimates.gpus import gpus_for, gpus_on_run_node, replica_demand
from streamrl.config.loading.load import load_args
from streamrl.services.cli.main import app

NAMES = sorted(path.stem for path in TUTORIALS.glob("*.md"))
STAND_IN = ("--model.path", "none", "--model.preset", "tiny-qwen3", "--rollout.sampling.max_new_tokens", "5")
"""For a model that the page has the reader make, or download."""
MACHINES = (None, "head", "every other machine")


def test_there_is_one_for_each_thing_that_a_user_brings() -> None:
    assert NAMES == ["agent", "cluster", "gpu", "own-data", "own-model", "own-reward"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_a_page_of_80_lines(name: str) -> None:
    assert len(Tutorial(name).text.splitlines()) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_its_commands_are_commands(name: str, tmp_path: Path) -> None:
    tutorial = Tutorial(name)
    commands = [line for machine in MACHINES for line in tutorial.commands(machine) if line.startswith("streamrl ")]
    assert commands
    for command in commands:
        app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("name", NAMES)
def test_its_configurations_are_configurations(name: str, tmp_path: Path) -> None:
    tutorial = Tutorial(name)
    tutorial.write(tmp_path)
    files = {file: text for file, text in tutorial.files().items() if file.endswith(".toml")}
    assert files
    for file, text in files.items():
        load_args(tmp_path / file, STAND_IN if "path = " in text else ())


def test_one_gpu_is_enough_for_one_gpu(tmp_path: Path) -> None:
    Tutorial("gpu").write(tmp_path)
    assert gpus_for(gpus_on_run_node(load(tmp_path / "one-gpu.toml"))) == 1


def test_the_servers_take_four_gpus(tmp_path: Path) -> None:
    tutorial = Tutorial("gpu")
    tutorial.write(tmp_path)
    config = load_args(tmp_path / "servers.toml", STAND_IN)
    assert "This asks for four GPUs" in tutorial.text
    assert gpus_for(gpus_on_run_node(config)) == 4


def test_without_a_gpu_check_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Tutorial("gpu").write(tmp_path)
    done = run(tmp_path, "check", "one-gpu.toml")
    assert done.code == 3
    assert "the run asks for 1 GPU, and there are 0" in done.output


def test_a_replica_of_the_cluster_takes_one_place_of_a_machine(tmp_path: Path) -> None:
    tutorial = Tutorial("cluster")
    tutorial.write(tmp_path)
    assert replica_demand(load(tmp_path / "run.toml")) == {"rollout-node": 1}
    (start,) = [line for line in tutorial.commands("every other machine") if line.startswith("ray start")]
    assert '{"rollout-node": 2}' in start
