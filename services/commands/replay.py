"""`streamrl replay`: train again on the rollouts that a run recorded, and compare step by step.

No Ray and no generation: the run's own log goes through the learner, from the weights that the stream began with. With
the run's number of ranks and threads the result is the run's, to the bit; with others it differs by rounding. The run
folder is read and not changed.

Rank 0 works here, the other ranks in processes of their own:
`python -m streamrl.services.commands.replay RUN RANK RANKS STEPS SCRATCH`.
"""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from streamrl.buffers.recovery.recorded import recorded_leases
from streamrl.clock import SystemClock
from streamrl.config import Config, load
from streamrl.errors import ComponentError
from streamrl.observability.metrics import read_metrics
from streamrl.observability.timeline import StepTimer
from streamrl.services.actors.process_environment import extend_import_path
from streamrl.services.learner.core import LearnerCore
from streamrl.services.queue.actor import queue_settings
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import model_folder, start_folder
from streamrl.tasks.load import open_task
from streamrl.tasks.order import order_of

COMPARED = ("loss/policy", "grad/norm")
RANK_END_S = 60.0


class ReplayedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, counted from 1. difference: largest |here - recorded| of loss and gradient norm, None when the run did
    not write the step down. digest: of the weights after it; same: whether the run's were equal to the bit."""

    step: int
    loss: float
    grad_norm: float
    digest: str
    difference: float | None
    same: bool


def replay(run: RunFolder, steps: int | None = None, num_workers: int | None = None) -> Iterator[ReplayedStep]:
    """Train again on what `run` recorded: `steps` steps at most, on `num_workers` ranks (the run's own when None).

    Raises RunFolderError when nothing, or not all of it, was recorded; ComponentError when a rank fails.
    """
    config = replay_config(run, num_workers)
    recorded = {line["step"]: line for line in read_metrics(run.metrics_path) if "loss/policy" in line}
    with tempfile.TemporaryDirectory(prefix="streamrl-replay-") as scratch:
        others = [_start_rank(run, config, rank, steps, scratch) for rank in range(1, config.learner.num_workers)]
        try:
            for metrics in retrain(run, config, 0, steps, Path(scratch)):
                yield _compared(metrics, recorded.get(metrics["step"]))
            for rank, process in enumerate(others, start=1):
                if process.wait(RANK_END_S):
                    raise ComponentError(f"replay: rank {rank} ended with exit code {process.returncode}")
        finally:
            for process in others:
                process.kill()
                process.wait()


def replay_config(run: RunFolder, num_workers: int | None) -> Config:
    """The run's configuration, with the weights that its stream began with as the model."""
    extend_import_path()
    config = load(run.config_path)
    model = msgspec.structs.replace(config.model, preset=None, path=str(start_folder(run.path, config)))
    learner = config.learner
    if num_workers and num_workers != learner.num_workers:
        # What a layer or a pack is spread over is no part of what was trained.
        learner = msgspec.structs.replace(learner, num_workers=num_workers, tensor_parallel=1, sequence_parallel=1)
    return msgspec.structs.replace(config, model=model, learner=learner)


def retrain(run: RunFolder, config: Config, rank: int, steps: int | None, scratch: Path) -> Iterator[dict[str, Any]]:
    """Collective. Metrics of each recorded step as one rank makes it, with `step` and `weights/digest`."""
    core = LearnerCore(run, config, rank, store_path=scratch / "ranks")
    built = core.build(resume=False)
    task = open_task(config, model_folder(run.path, config))
    settings = queue_settings(config, task, built["longest_prompt"])
    leases = recorded_leases(run.path, settings, order_of(task, config.seed))
    timer = StepTimer(SystemClock())
    try:
        for lease in itertools.islice(leases, steps):
            metrics = core.train(core.plan(lease), timer)
            yield {**metrics, "step": core.step, "weights/digest": core.weight_digest()}
    finally:
        core.close()


def main(run: RunFolder, steps: int | None = None, num_workers: int | None = None) -> int:
    """Print a line for each step that differs, and the sum of it. Exit code 0: all steps were made again."""
    done = [step for step in replay(run, steps, num_workers) if _print_step(step)]
    compared = [step.difference for step in done if step.difference is not None]
    worst = f"{max(compared):.3g}" if compared else "-"
    same = sum(step.same for step in done)
    print(f"{len(done)} steps again; weights equal to the bit after {same}; largest difference {worst}")
    return 0


def _print_step(step: ReplayedStep) -> bool:
    if not step.same:
        difference = "-" if step.difference is None else f"{step.difference:.3g}"
        print(f"step {step.step}  loss {step.loss:+.6f}  gradient {step.grad_norm:.6f}  difference {difference}")
    return True


def _compared(here: dict[str, Any], there: dict[str, Any] | None) -> ReplayedStep:
    return ReplayedStep(
        step=here["step"],
        loss=here["loss/policy"],
        grad_norm=here["grad/norm"],
        digest=here["weights/digest"],
        difference=None if there is None else max(abs(here[key] - there[key]) for key in COMPARED),
        same=there is not None and here["weights/digest"] == there["weights/digest"],
    )


def _start_rank(
    run: RunFolder, config: Config, rank: int, steps: int | None, scratch: str
) -> "subprocess.Popen[bytes]":
    arguments = [str(run.path), str(rank), str(config.learner.num_workers), str(steps or 0), scratch]
    return subprocess.Popen([sys.executable, "-P", "-m", "streamrl.services.commands.replay", *arguments])


def _rank_main(arguments: list[str]) -> None:
    folder, rank, num_workers, steps, scratch = arguments
    run = RunFolder.open(Path(folder))
    config = replay_config(run, int(num_workers))
    for _ in retrain(run, config, int(rank), int(steps) or None, Path(scratch)):
        pass


if __name__ == "__main__":
    _rank_main(sys.argv[1:])
