"""R10: a process that slept through its replacement cannot write anything that is ever read.

50 writers, each stopped by SIGSTOP at a moment drawn by the seed, replaced, and woken by SIGCONT; and one on Ray.
`SEED` replays a run that failed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.faults.fault_scale import SEED
from support.repository import TESTS

from streamrl.services.run.folder import RunFolder

WRITERS = 50
LIMIT_S = 300
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_invariant_1_what_a_writer_does_after_it_was_replaced_is_refused_and_never_read(memory_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, TESTS / "fenced_writers.py", str(SEED), memory_folder, str(WRITERS)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"SEED={SEED}: {done.stderr[-3000:]}"
    told = json.loads(done.stdout)
    assert told["exit_codes"] == {"0": WRITERS}, f"SEED={SEED}: {told} {done.stderr[-2000:]}"
    assert sum(told["moments"].values()) == WRITERS
    assert set(told["moments"]) == {"take", "appending", "appended", "accept"}
    assert told["refused"] >= 4 * WRITERS, f"SEED={SEED}: {told}"
    assert told["let_in"] == 0, f"SEED={SEED}: {told}"
    assert told["accepted_late"] == [], f"SEED={SEED}"
    assert told["unreadable"] == [], f"SEED={SEED}"
    assert told["rows"][0] == told["rows"][1] > 0
    assert told["ignored"] == 0


@pytest.mark.ray
def test_invariant_1_an_actor_that_slept_through_its_replacement_is_refused(tmp_path: Path) -> None:
    folder, runtime = tmp_path / "run", Path(f"/tmp/srl-test-{os.getpid()}")
    folder.mkdir()
    RunFolder.create(folder, "run")
    process = subprocess.Popen(
        [sys.executable, "-P", TESTS / "fenced_actor.py", folder, runtime],
        env={**ENVIRONMENT, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        _end(process)
        shutil.rmtree(runtime, ignore_errors=True)
    assert process.returncode == 0, err[-3000:]
    told = json.loads(out.splitlines()[-1])
    assert "rollout-0 acts under epoch 0, but epoch 1 has replaced it" in told["told"]
    assert told["after"] == told["replaced"]
    assert told["after"]["rows_complete"] > 0


def _end(process: "subprocess.Popen[str]") -> None:
    """End what may still be there of it."""
    if process.poll() is None:
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            child.kill()
