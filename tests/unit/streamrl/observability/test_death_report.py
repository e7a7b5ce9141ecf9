"""What is told of a process that died: first how it ended, then what it was doing, then what that cost."""

import signal
from typing import Any

import pytest

from streamrl.observability.death_report import Death, doing_of

SAID_BY_RAY = "The actor died unexpectedly before finishing this task."


def death(**facts: Any) -> Death:
    usual = {"part": "rollout-0", "pid": 71, "code": -signal.SIGKILL, "memory_kills": 0, "ray": SAID_BY_RAY}
    return Death(**{**usual, **facts})


@pytest.mark.parametrize(
    ("facts", "how"),
    [
        ({}, "ended by SIGKILL, not for lack of memory"),
        (
            {"memory_kills": 1},
            "ended by SIGKILL, for lack of memory: the kernel ended a process of this machine for it meanwhile",
        ),
        (
            {"memory_kills": 3},
            "ended by SIGKILL, for lack of memory: the kernel ended 3 processes of this machine for it meanwhile",
        ),
        ({"memory_kills": None}, "ended by SIGKILL, whether for lack of memory the kernel does not say"),
        ({"ray_memory": True, "ray": "95% used"}, "ended by Ray for lack of memory: 95% used"),
        ({"code": 7, "memory_kills": 3}, "ended with exit code 7"),
        ({"code": -signal.SIGSEGV}, "ended by SIGSEGV"),
        (
            {"code": -signal.SIGSEGV, "trace": "Fatal Python error: Segmentation fault\n\nCurrent thread"},
            "ended by SIGSEGV: Fatal Python error: Segmentation fault",
        ),
        ({"code": 0}, SAID_BY_RAY),
        ({"code": None}, SAID_BY_RAY),
    ],
)
def test_how_it_ended_comes_first(facts: dict[str, object], how: str) -> None:
    assert death(**facts).line() == f"rollout-0: its process died, {how}"


def test_what_it_was_doing_and_what_that_cost_follow() -> None:
    told = death(code=7, doing="it was at step 7, publish", heard_s=1.4, cost="trained again: 2 steps after 5")
    assert told.line() == (
        "rollout-0: its process died, ended with exit code 7; it was at step 7, publish (1 s before); "
        "trained again: 2 steps after 5"
    )


def test_the_report_has_the_line_then_all_words_that_there_are() -> None:
    told = death(code=-signal.SIGSEGV, trace="Fatal Python error: Segmentation fault", log=["started", "serves"])
    assert told.text() == (
        "==== rollout-0, pid 71\n"
        "rollout-0: its process died, ended by SIGSEGV: Fatal Python error: Segmentation fault\n\n"
        f"==== what Ray says\n{SAID_BY_RAY}\n\n"
        "==== what it wrote on its way out\nFatal Python error: Segmentation fault\n\n"
        "==== its last 2 log lines\nstarted\nserves\n"
    )
    assert "way out" not in death().text()
    assert "log lines" not in death().text()


@pytest.mark.parametrize(
    ("status", "doing"),
    [
        ({"step": 7, "doing": "publish", "entered": 3}, "it was at step 7, publish"),
        ({"workers": 4, "busy": 3, "oldest_s": 2.0}, "3 of its 4 workers were busy"),
        (
            {"running": 8, "waiting": 2, "version": "0.3", "state": "serving"},
            "it ran 8 completions under version 0.3, 2 waited",
        ),
    ],
)
def test_what_a_part_was_doing_is_what_it_last_said_of_itself(status: dict[str, object], doing: str) -> None:
    assert doing_of(status) == doing
