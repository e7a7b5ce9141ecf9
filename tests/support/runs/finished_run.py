"""A `streamrl` command as a user calls it, to its end, and what it left behind."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.runs.live_run import LIMIT_S, STREAMRL


@dataclass(frozen=True)
class Finished:
    """What a `streamrl` command left behind."""

    code: int
    output: str
    folder: Path

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are steps."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "loss/policy" in line]

    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


def run(folder: Path, *arguments: str, name: str = "test", limit_s: float = LIMIT_S) -> Finished:
    """One `streamrl` command in a user's folder, to its end."""
    done = subprocess.run(
        [STREAMRL, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, folder / "runs" / name)
