"""Which runs make the table of `bench_learning`, in which order, and what each is told. Pure: it starts nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CORRECTIONS: Mapping[str, Mapping[str, str]] = {
    "plain": {"proximal": "rollout", "correction": "none"},
    "tis": {"proximal": "recompute", "correction": "tis"},
    "decoupled": {"proximal": "interpolate", "correction": "tis"},
}
"""By name: plain PPO, whose ratio is against the policy that sampled, and without a weight; the truncated importance
weight, with the ratio against the policy before the step; and both, each for a part of the way."""

DEFAULT = "decoupled"
"""What a configuration has that says nothing of it."""

TASKS: Mapping[str, Sequence[str]] = {
    "arithmetic": ("learning.toml",),
    "chain_sum": ("learning.toml", "learning_chain_sum.toml"),
}
"""The files of each task, in the folder of configurations, that are laid over the quickstart's."""

TASK_FOLDER = "learning_study/tasks"
"""Where runs find the modules of their tasks; within the folder of configurations."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How old rows may be, and what is done about it."""

    staleness: int
    correction: str

    def __str__(self) -> str:
        return f"staleness {self.staleness}" + (f", {self.correction}" if self.staleness else "")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the table, or with no setting the warm-up that all runs of its task and seed begin from."""

    task: str
    seed: int
    setting: Setting | None = None

    @property
    def name(self) -> str:
        """Of its folder."""
        what = "warm" if self.setting is None else f"{self.setting.staleness}-{self.setting.correction}"
        return f"{self.task}-{self.seed}-{what}"

    @property
    def warm(self) -> "Run":
        """The run that makes the model which this one begins from."""
        return Run(self.task, self.seed)


def settings(stalenesses: Sequence[int]) -> list[Setting]:
    """Every bound with every correction. Without staleness the three are one: rows come from the policy before the
    step, every weight is 1, and the ratio is against the same policy whatever it is called."""
    return [
        Setting(staleness, correction)
        for staleness in sorted(set(stalenesses))
        for correction in (CORRECTIONS if staleness else (DEFAULT,))
    ]


def plan(tasks: Sequence[str], seeds: int, stalenesses: Sequence[int]) -> Iterator[Run]:
    """All runs, each after its warm-up. Seed after seed, so that a bench that is cut off has whole rounds, and what a
    machine does over hours falls on all settings alike."""
    for seed in range(seeds):
        for task in tasks:
            yield Run(task, seed)
            yield from (Run(task, seed, setting) for setting in settings(stalenesses))


def arguments(run: Run, steps: int, runs: Path, here: Path) -> list[str]:
    """What `streamrl up` gets. runs: the folder of run folders. here: the folder of the configurations laid on top."""
    files = [str(here.parent / "configs/quickstart.toml")]
    for file in TASKS[run.task]:
        files += ["@", str(here / file)]
    keys: dict[str, object] = {"name": run.name, "runs": runs, "seed": run.seed}
    if run.setting is None:
        keys |= {"learner.steps": 1, "eval.max_items": 16}
    else:
        keys |= _keys(run.setting) | {"learner.steps": steps, "warmup.max_steps": 0}
        keys |= {"model.preset": "none", "model.path": runs / run.warm.name / "start"}
    return files + [part for key, value in keys.items() for part in (f"--{key}", str(value))]


def _keys(setting: Setting) -> dict[str, object]:
    """As many batches may wait or run ahead as the bound allows: rows are then about as old as they may be."""
    algorithm = {f"learner.algorithm.{key}": value for key, value in CORRECTIONS[setting.correction].items()}
    return {"learner.max_staleness": setting.staleness, "learner.lead": max(1, setting.staleness), **algorithm}
