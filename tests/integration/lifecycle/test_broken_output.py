"""A run goes on when what `streamrl up` prints can no longer be written."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.runs.live_run import LIMIT_S, STREAMRL

pytestmark = [pytest.mark.ray, pytest.mark.long]


@contextmanager
def full_disk() -> Iterator[int]:
    with open("/dev/full", "w") as full:
        yield full.fileno()


@contextmanager
def pipe_that_nobody_reads() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (full_disk, "No space left on device"),
        (pipe_that_nobody_reads, "Broken pipe"),
    ],
)
def test_a_run_ends_well_and_one_line_says_why_nothing_is_shown(output, why: str, user_folder: Path) -> None:
    name = f"unseen-{output.__name__}"
    command = [STREAMRL, "up", "base.toml", "--name", name, "--rollout.engine", "scripted", "--learner.steps", "4"]
    with output() as out:
        done = subprocess.run(
            command,
            cwd=user_folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("standard output cannot be written") == 1
    assert f"{why}; the run goes on; `streamrl status` shows it" in done.stderr
    assert (user_folder / "runs" / name / "summary.json").exists()
