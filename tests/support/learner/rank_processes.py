"""Ranks of a process group as processes of their own, for tests of what they agree on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.repository import TESTS

MAIN = Path(__file__).with_name("rank_main.py")


def run_ranks(
    program: Path, folder: Path, world: int, *further: Path, timeout_s: float = 250.0
) -> list[dict[str, Any]]:
    """What each rank wrote. The program is given the group's store, its rank, the number of ranks, `further`, and the
    file to write to."""
    outs = [folder / f"{world}_{rank}.json" for rank in range(world)]
    commands = [
        [sys.executable, MAIN, program, folder / f"store_{world}", str(rank), str(world), *further, out]
        for rank, out in enumerate(outs)
    ]
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ranks = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=timeout_s)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            assert rank.stderr is not None
            rank.stderr.close()
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]
