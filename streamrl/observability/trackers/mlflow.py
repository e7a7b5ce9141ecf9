"""MLflow. Without `MLFLOW_TRACKING_URI` it keeps a database beside the run folder: `mlflow.db`, for all runs there.

The run is found again by its tag `streamrl.run_id`; `streamrl.step` is the newest step that it has. The experiment is
the project, or `MLFLOW_EXPERIMENT_NAME`.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from streamrl.observability.trackers.base import Cell, Ending, TrackedRun, flat

TAG, STEP = "streamrl.run_id", "streamrl.step"
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
MOST_PARAMS, LONGEST_PARAM = 100, 6000
"""Of one batch; of a value. The server refuses more."""
_REFUSED = re.compile(r"[^\w\-. :/]")
"""What no name of a metric may have."""


class MlflowTracker:
    """See the module."""

    rewinds: ClassVar[bool] = False

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._entities = entities
        runs = Path(run.folder).parent
        self.where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs / 'mlflow.db'}"
        self._client = MlflowClient(self.where)
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project, runs)
        found = self._client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        self._id = found[0].info.run_id if found else self._new_run(experiment, run)
        self.last_step = int(found[0].data.tags.get(STEP, -1)) if found else -1
        self._client.update_run(self._id, status="RUNNING")

    def _experiment(self, name: str, runs: Path) -> str:
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        place = None if os.environ.get("MLFLOW_TRACKING_URI") else (runs / "mlflow-artifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=place))

    def _new_run(self, experiment: str, run: TrackedRun) -> str:
        made = self._client.create_run(experiment, run_name=run.name, tags={TAG: run.run_id}).info.run_id
        params = ((key, json.dumps(value)[:LONGEST_PARAM]) for key, value in flat(run.config).items())
        while batch := list(islice(params, MOST_PARAMS)):
            self._client.log_batch(made, params=[self._entities.Param(*pair) for pair in batch])
        return str(made)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        now = time.time_ns() // 10**6
        metrics = [
            self._entities.Metric(_REFUSED.sub("_", key), value, now, step) for key, value in sorted(numbers.items())
        ]
        self._client.log_batch(self._id, metrics=metrics, tags=[self._entities.RunTag(STEP, str(step))])

    def forget_after(self, step: int) -> None:
        raise NotImplementedError("a run of MLflow keeps its steps")

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        content: Any = {"columns": list(columns), "data": [list(row) for row in rows]}
        self._client.log_dict(self._id, content, f"{name}-{step}.json")

    def finish(self, ending: Ending) -> None:
        if ending.summary:
            self._client.log_dict(self._id, ending.summary, "summary.json")
        for path in ending.files:
            self._client.log_artifact(self._id, path)
        if ending.export:
            self._client.log_artifacts(self._id, ending.export, "export")
        self._client.set_terminated(self._id, STATUS[ending.state])
