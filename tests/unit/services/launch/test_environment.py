"""What a run's processes inherit, and what a person is told does not reach them."""

from pathlib import Path

import pytest

from streamrl.services.launch.environment import LEFT_OUT, launch_environment, left_out
from streamrl.system.child_process import USERS_WARNINGS, child_environment


def test_what_breaks_a_process_of_the_run_is_left_out_and_told() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/mine", **dict.fromkeys(LEFT_OUT, "1")}
    assert launch_environment(given) == {"PATH": "/bin", "PYTHONPATH": "/mine", USERS_WARNINGS: "1"}
    told = left_out(given)
    assert [line.split()[0] for line in told] == list(LEFT_OUT)
    assert (
        told[0]
        == "PYTHONOPTIMIZE does not reach the parts of a run: Ray does not start without docstrings and assertions"
    )


def test_an_environment_with_nothing_of_that_is_as_it_was() -> None:
    given = {"PATH": "/bin", "PYTHONWARNINGS": ""}
    assert launch_environment(given) == {"PATH": "/bin"}
    assert left_out(given) == []


def test_relative_folders_of_modules_are_those_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert launch_environment({"PYTHONPATH": "/mine:lib:"}) == {"PYTHONPATH": f"/mine:{tmp_path}/lib:{tmp_path}"}
    assert launch_environment({"PYTHONPATH": ""}) == {"PYTHONPATH": ""}


def test_warnings_reach_the_users_code_past_rays(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    assert "PYTHONWARNINGS" not in child_environment()
    monkeypatch.setenv(USERS_WARNINGS, "error")
    assert child_environment()["PYTHONWARNINGS"] == "error"
