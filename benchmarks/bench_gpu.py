"""What one GPU gives: engine, learner, weights and a whole run, at most 6 minutes in all.

Each part is a process of its own with a time limit; a part that fails or passes its limit is a row that does not hold.
`make bench-gpu` keeps the record as benchmarks/results/gpu-NAME.json, NAME that of the GPU.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from gpu.rows import read
from report import Report

HERE = Path(__file__).resolve().parent
PARTS = {
    "engine": (["gpu.engine", "small"], 50),
    "engine, deterministic": (["gpu.engine", "deterministic"], 30),
    "engine, 8B": (["gpu.engine", "large"], 40),
    "learner": (["gpu.learner"], 110),
    "whole run": (["gpu.whole"], 125),
}
"""Modules with their arguments, and seconds that each may take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of: {', '.join(PARTS)}; all by default")
    chosen = parser.parse_args().parts or list(PARTS)
    if not torch.cuda.is_available():
        print("bench_gpu needs a CUDA device, and torch finds none")
        return 2
    device = torch.cuda.get_device_name()
    report = Report(f"gpu-{short_name(device)}")
    report.add(f"{device}: memory", torch.cuda.mem_get_info()[1] / 2**30, "GiB")
    for part in chosen:
        run(report, part, *PARTS[part])
        report.write()
    return report.finish()


def short_name(device: str) -> str:
    """ "h100" for "NVIDIA H100 80GB HBM3"."""
    found = re.search(r"[A-Z]+\d+", device.removeprefix("NVIDIA "))
    return (found.group() if found else "gpu").lower()


def run(report: Report, part: str, command: list[str], limit_s: int) -> None:
    """Run one part; its figures become rows."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        printed, _ = process.communicate()
        code = -1
    print(printed, flush=True)
    for figure in read(printed.splitlines()):
        report.add(**figure)
    report.add(f"{part}: failed", int(code != 0), "", at_most=0)


if __name__ == "__main__":
    sys.exit(main())
