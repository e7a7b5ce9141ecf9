"""What updates are in whole runs: how long generation stands still, and how much of the weights a step changes.

Short runs of the quickstart, and of the quickstart on a vLLM server with 32 requests at once where there is one.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from report import Report
from safetensors import safe_open

ROOT = Path(__file__).parents[2]
STREAMRL = Path(sys.executable).with_name("streamrl")
VLLM_PYTHON = ROOT / ".venvs/vllm/bin/python"
SHORT = ("--eval.every", "1000", "--eval.max_items", "100", "--eval.target_score", "0")
SKIPPED = 5
"""Steps at the beginning, while everything is called for the first time."""


def measure(report: Report, steps: int) -> None:
    """All of it."""
    stalls(report, steps)
    stalls_on_vllm(report, steps)
    for rate in ("3e-4", "1e-6"):
        changed_share(report, rate)


def stalls(report: Report, steps: int) -> None:
    lines = metrics("quickstart", "--learner.steps", str(steps))
    # An update that meets no request holds nobody up.
    stalled = statistics.fmean(line["weights/stall_s"] for line in lines if line["weights/stall_s"])
    share = stalled / statistics.fmean(line["time/step"] for line in lines)
    report.add(
        "quickstart: generation stands still, share of the time between two updates", 100 * share, "%", at_most=1
    )
    report.add("quickstart: generation stands still for an update", 1e3 * stalled, "ms")
    for part in ("snapshot", "gather", "write", "handover", "transfer", "load"):
        took = statistics.median(line[f"weights/{part}_s"] for line in lines)
        report.add(f"quickstart: {part} of a version", 1e3 * took, "ms")


def stalls_on_vllm(report: Report, steps: int) -> None:
    if not VLLM_PYTHON.exists():
        print("no vLLM (make engines): its stalls are not measured", file=sys.stderr)
        return
    server = ("--rollout.server.python", str(VLLM_PYTHON), "--rollout.slots", "32", "--rollout.update_mode", "keep")
    lines = metrics("quickstart-vllm", *server, "--learner.steps", str(steps), "--warmup.max_steps", "0")
    stalled = [1e3 * line["weights/stall_s"] for line in lines if line["weights/stall_s"]]
    name = "vLLM with 32 requests: generation stands still for an update"
    report.add(name, statistics.median(stalled), "ms", at_most=150)
    report.add(f"{name}, at most", max(stalled), "ms")


def metrics(config: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of steps of a run, without the first."""
    with tempfile.TemporaryDirectory(prefix="bench-weights-") as folder:
        lines = (up(Path(folder), config, *arguments) / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if "time/step" in line and "weights/stall_s" in line]
    return steps[SKIPPED:]


def changed_share(report: Report, rate: str, steps: int = 20) -> None:
    """Of the elements of a bfloat16 model, over consecutive versions of the quickstart at a learning rate."""
    keep = ("--checkpoint.every", "1", "--checkpoint.keep", str(steps + 1), "--learner.steps", str(steps))
    what = ("--model.dtype", "bfloat16", "--learner.optimizer.lr", rate, "--learner.optimizer.decay", "constant")
    shares = []
    with tempfile.TemporaryDirectory(prefix="bench-weights-") as folder:
        run = up(Path(folder), "quickstart", *keep, *what)
        # The rate rises over the first steps.
        saved = sorted((run / "checkpoints").glob("step_*"))[-10:]
        for older, newer in itertools.pairwise(saved):
            old, new = weights(older), weights(newer)
            changed = sum(int((old[name] != new[name]).sum()) for name in old)
            shares.append(changed / sum(tensor.numel() for tensor in old.values()))
    report.add(f"quickstart in bfloat16 at {rate}: elements that a step changes", 100 * statistics.median(shares), "%")


def up(folder: Path, config: str, *arguments: str) -> Path:
    """Run it to its end; returns the run's folder."""
    words = [STREAMRL, "up", ROOT / f"configs/{config}.toml", *SHORT, *arguments, "--name", "bench", "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{config} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return folder / "runs/bench"


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The bits of the bfloat16 weights of a checkpoint, which holds them in float32."""
    found = {}
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names = [name for name in list(file.keys()) if name.startswith("model/")]
            found |= {name: file.get_tensor(name).to(torch.bfloat16).view(torch.int16) for name in names}
    return found


if __name__ == "__main__":
    report = Report("weights-runs")
    measure(report, 40)
    sys.exit(report.finish())
