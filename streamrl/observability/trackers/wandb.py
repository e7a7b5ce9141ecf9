"""Weights & Biases. `WANDB_MODE=offline` writes below the run folder, for `wandb sync`.

It takes `WANDB_*` variables as its own programs do: project, entity, group, tags, mode, address. A step that it has
already is not taken again, so steps that are trained again after a resume keep their first values.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from streamrl.observability.trackers.base import Cell, Ending, TrackedRun

EXIT_CODES = {"finished": 0, "stopped": 0, "failed": 1}


class WandbTracker:
    """See the module."""

    rewinds: ClassVar[bool] = False

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._wandb = wandb
        folder = Path(os.environ.get("WANDB_DIR") or run.own_folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.project,
            name=os.environ.get("WANDB_NAME") or run.name,
            id=run.run_id,
            resume="allow",
            dir=str(folder),
            config=run.config,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )
        self._id = run.run_id
        self.last_step = self._run.starting_step - 1
        self.where = self._run.url or str(Path(self._run.dir).parent)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def forget_after(self, step: int) -> None:
        raise NotImplementedError("a run of wandb keeps its steps")

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        table = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({name: table}, step=step)

    def finish(self, ending: Ending) -> None:
        self._run.summary.update(ending.summary)
        self._add("config", [path for path in ending.files if path.endswith(".toml")])
        self._add("results", [path for path in ending.files if not path.endswith(".toml")])
        self._add("export", [ending.export] if ending.export else [])
        self._run.finish(exit_code=EXIT_CODES[ending.state])

    def _add(self, kind: str, paths: Sequence[str]) -> None:
        """As one artifact; nothing without files."""
        if not paths:
            return
        artifact = self._wandb.Artifact(f"{kind}-{self._id}", type="model" if kind == "export" else kind)
        for path in paths:
            if Path(path).is_dir():
                artifact.add_dir(path)
            else:
                artifact.add_file(path)
        self._run.log_artifact(artifact)
