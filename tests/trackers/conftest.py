"""Published packages of trackers, in an environment of their own: `make test-trackers`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.trackers.recorded import lines, tracked

from streamrl.observability.trackers.base import Ending
from streamrl.observability.trackers.hub import TrackerHub
from streamrl.observability.trackers.names import NamedFigures
from streamrl.observability.trackers.tracker_process import TrackerProcess

LIMIT_S = 120.0
COLUMNS = ("step", "prompt", "completion", "reward")
ROWS = ((8, "1+1=", "2", 1.0), (8, "2|2=", "a\nb", None))
SUMMARY = {"steps": 8, "eval_after": 0.25, "durability": "disk"}

Launch = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes out, and a home of their own."""
    for name in [
        name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "SWANLAB_", "OTEL_"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """`launch("wandb", records)`: one launch of the run, to whose trackers these lines are told; their status after it.
    resumed: step that it goes on from."""

    def one(
        *names: str,
        records: Sequence[dict[str, Any]] | None = None,
        resumed: int | None = None,
        state: str = "finished",
        **changes: Any,
    ) -> dict[str, Any]:
        run = tracked(tmp_path, **changes)
        hub = TrackerHub(
            [TrackerProcess(name, run, start_s=LIMIT_S, answer_s=LIMIT_S) for name in names], NamedFigures("verl")
        )
        if resumed is not None:
            hub.truncate_after(resumed)
        for record in lines() if records is None else records:
            hub.write(record)
        if state == "finished":
            hub.table(8, "samples", COLUMNS, ROWS)
            hub.finish(_ending(Path(run.folder)))
        else:
            hub.finish(Ending(state=state))
        hub.close(LIMIT_S)
        assert hub.take_news() == []
        return hub.status()

    return one


def _ending(folder: Path) -> Ending:
    export = folder / "export"
    export.mkdir(exist_ok=True)
    (export / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return Ending(state="finished", summary=SUMMARY, files=[str(folder / "config.json")], export=str(export))
