"""SwanLab. `SWANLAB_MODE=offline` writes below the run folder, for `swanlab sync`; `local` is for `swanlab watch`.

It takes `SWANLAB_*` variables as its own programs do.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from streamrl.observability.trackers.base import Cell, Ending, TrackedRun

STATES = {"finished": "success", "stopped": "aborted", "failed": "crashed"}


class SwanlabTracker:
    """See the module."""

    rewinds: ClassVar[bool] = False

    def __init__(self, run: TrackedRun) -> None:
        import swanlab

        self._swanlab = swanlab
        folder = Path(os.environ.get("SWANLAB_LOG_DIR") or run.own_folder / "swanlab")
        folder.mkdir(parents=True, exist_ok=True)
        swanlab.init(
            project=os.environ.get("SWANLAB_PROJ_NAME") or run.project,
            name=os.environ.get("SWANLAB_EXP_NAME") or run.name,
            id=run.run_id,
            resume="allow",
            log_dir=str(folder),
            config=run.config,
        )
        self.last_step = -1  # it drops what it has by itself
        self.where = str(folder)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._swanlab.log(dict(numbers), step=step)

    def forget_after(self, step: int) -> None:
        raise NotImplementedError("a run of SwanLab keeps its steps")

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        texts = [
            self._swanlab.Text("\n".join(f"{column}: {cell}" for column, cell in zip(columns, row, strict=True)))
            for row in rows
        ]
        self._swanlab.log({name: texts}, step=step)

    def finish(self, ending: Ending) -> None:
        self._swanlab.config.update({"summary": ending.summary} if ending.summary else {})
        for path in ending.files:
            self._swanlab.save(path, base_path=str(Path(path).parent))
        if ending.export:
            self._swanlab.save(f"{ending.export}/*", base_path=str(Path(ending.export).parent))
        self._swanlab.finish(state=STATES[ending.state])
