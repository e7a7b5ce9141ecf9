"""A job of Slurm without Slurm: `sbatch` is bash, and stand-ins on PATH start real processes in the place of its steps.

`srun` runs its command as a child, once for each task, passes SIGTERM on, and exits with the highest code, as the real
one does. `scontrol show hostnames` gives the nodes, and `scontrol requeue` writes down that it was asked.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys

options, command = [], sys.argv[1:]
while command and command[0].startswith("--"):
    options.append(command.pop(0))
ntasks = next(int(one.partition("=")[2]) for one in options if one.startswith("--ntasks="))
tasks = [subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(n)}) for n in range(ntasks)]
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
with open(os.environ["STAND_IN_LOG"], "a") as log:
    print("srun", *options, *command, file=log)
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
SCONTROL = """#!/bin/sh
case $1 in
  show) i=0; while [ $i -lt "$SLURM_NNODES" ]; do echo "node$i"; i=$((i + 1)); done ;;
  requeue) echo "requeue $2" >> "$STAND_IN_LOG" ;;
esac
"""
GETENT = """#!/bin/sh
echo "10.0.0.7        STREAM $2"
"""


class Slurm:
    """Stand-ins in a folder of their own. log: what they were asked. environment: of a job."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.log = folder / "asked.log"
        self.log.touch()
        self._environment = environment
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "getent": GETENT}.items():
            self.program(name, text)

    def program(self, name: str, text: str) -> None:
        """One more on PATH, before all others."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    @contextmanager
    def job(self, script: Path, home: Path, nodes: int = 1) -> Iterator["subprocess.Popen[str]"]:
        """A started job, in a process group of its own; killed at the end if it still runs."""
        environment: Mapping[str, str] = {
            **os.environ,
            **self._environment,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "STAND_IN_LOG": str(self.log),
            "SLURM_JOB_ID": "4711",
            "SLURM_SUBMIT_DIR": str(home),
            "SLURM_JOB_NODELIST": "node[0-9]",
            "SLURM_NNODES": str(nodes),
            "SLURM_CPUS_PER_TASK": "2",
            "OMP_NUM_THREADS": "1",
        }
        started = subprocess.Popen(
            ["bash", script],
            cwd="/",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with started as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """What it says, up to the line with these words. Raises AssertionError when it ends before."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(said)
