"""The trackers of a run: which, what they are told of it at the beginning and the end, and how long it waits for them.

Guarantees: what a tracker is told of the configuration has no secret in it. Without trackers nothing is started, and
all of this does nothing.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from streamrl.config import Config
from streamrl.config.estimates.gpus import gpus_for, gpus_on_run_node
from streamrl.observability.logs import without_secrets
from streamrl.observability.trackers.base import Ending, TrackedRun
from streamrl.observability.trackers.hub import TrackerHub
from streamrl.observability.trackers.names import NamedFigures
from streamrl.observability.trackers.tracker_process import TrackerProcess
from streamrl.services.run.folder import RunFolder

SMALL_EXPORT_BYTES = 64 * 2**20
"""An export up to this goes to the trackers; of a larger one they get the path."""
STOP_SHARE = 0.25
"""Of `deadlines.stop_s`, what trackers have when a run is stopped."""


def tracker_hub(run: RunFolder, config: Config) -> TrackerHub:
    """The trackers of the configuration, starting; the run waits for none."""
    deadlines = config.deadlines
    figures = NamedFigures(config.observe.names, max(1, gpus_for(gpus_on_run_node(config))))
    return TrackerHub(
        [
            TrackerProcess(name, tracked_run(run, config), start_s=deadlines.start_s, answer_s=deadlines.tracker_s)
            for name in config.observe.all_trackers
        ],
        figures,
    )


def tracked_run(run: RunFolder, config: Config) -> TrackedRun:
    """What trackers know the run by, and its configuration."""
    launch = run.record.launch
    return TrackedRun(
        run_id=run.run_id,
        name=run.name,
        project=config.observe.project,
        folder=str(run.path.resolve()),
        config=_told(config),
        started_ns=0 if launch is None else launch.started_ns,
        incarnation=run.incarnation,
    )


def ending(run: RunFolder, config: Config, summary: dict[str, Any], *, stopping: bool) -> Ending:
    """How the launch ended, with what is kept of it. summary: empty where it did not finish."""
    state = "finished" if summary else "stopped" if stopping else "failed"
    told = run.path / "trackers" / "config.json"
    with suppress(OSError):  # a disk that is full is no reason for a run to end otherwise
        told.parent.mkdir(exist_ok=True)
        told.write_text(json.dumps(_told(config), indent=2) + "\n")
    files = [told, run.curve_path] if summary else [told]
    # The wall clock of the whole is the owner's to know, later.
    summary = {key: value for key, value in summary.items() if key != "wall_s"}
    return Ending(
        state=state,
        summary=summary,
        files=[str(path.resolve()) for path in files if path.is_file()],
        export=str(run.export_path.resolve()) if summary and is_small(run.export_path) else "",
    )


def finish_limit_s(config: Config, *, stopping: bool) -> float:
    """How long the run waits for its trackers at the end."""
    deadlines = config.deadlines
    return min(deadlines.tracker_s, deadlines.stop_s * STOP_SHARE) if stopping else deadlines.tracker_s


def is_small(folder: Path) -> bool:
    """Whether a folder is there, and its files are not too large to hand on."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return bool(files) and sum(path.stat().st_size for path in files) <= SMALL_EXPORT_BYTES


def _told(config: Config) -> dict[str, Any]:
    told = without_secrets(msgspec.to_builtins(config))
    assert isinstance(told, dict)
    return told
