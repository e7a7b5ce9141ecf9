"""A recorded run goes through the process of each tracker, and is what its package has stored then."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.trackers.recorded import lines
from support.trackers.wandb_file import records

REWARDS = {line["step"]: line["reward/mean"] for line in lines() if "reward/mean" in line}
SCORES = {line["step"]: line["eval/score"] for line in lines() if "eval/score" in line}
LAUNCHES: list[dict[str, Any]] = [
    {"records": [line for line in lines() if line["step"] <= 6], "state": "stopped"},
    {"records": [line for line in lines() if line["step"] > 4], "resumed": 4},
]
"""A run that stops after step 6, and goes on from its checkpoint of step 4."""


# ---- wandb


def of_wandb(folder: Path) -> list[list[Any]]:
    """The records of each launch, the earlier one first."""
    paths = sorted((folder / "runs/small/trackers/wandb").glob("offline-run-*/*.wandb"))
    return [list(records(path)) for path in paths]


def history(launches: list[list[Any]], key: str) -> dict[int, Any]:
    values = {}
    for record in (record for launch in launches for record in launch if record.WhichOneof("record_type") == "history"):
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if key in items:
            values[items["_step"]] = items[key]
    return values


def test_wandb_has_each_step_under_both_names_with_config_summary_samples_and_files(
    launch: Any, tmp_path: Path
) -> None:
    status = launch("wandb")["wandb"]
    assert status["state"] == "finished"
    assert Path(status["where"]).is_dir()
    told = of_wandb(tmp_path)
    assert history(told, "reward/mean") == history(told, "critic/score/mean") == REWARDS
    assert history(told, "eval/score") == SCORES
    assert (history(told, "samples/_type"), history(told, "samples/nrows")) == ({8: "table-file"}, {8: 2})
    assert told[0][-1].WhichOneof("record_type") == "exit"
    (run,) = [record.run for record in told[0] if record.WhichOneof("record_type") == "run"][:1]
    assert (run.run_id, run.project, run.display_name) == ("0123456789ab", "streamrl", "small")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["learner"]["optimizer"]["lr"] == 1e-3
    summary = {item.key: item.value_json for record in told[0] for item in record.summary.update}
    assert json.loads(summary["eval_after"]) == 0.25
    assert {record.artifact.type for record in told[0] if record.HasField("artifact")} == {
        "run_table",
        "results",
        "model",
    }


def test_a_resumed_run_is_one_run_of_wandb(launch: Any, tmp_path: Path) -> None:
    for one in LAUNCHES:
        launch("wandb", **one)
    first, second = of_wandb(tmp_path)
    ids = {record.run.run_id for launch in (first, second) for record in launch if record.HasField("run")}
    assert ids == {"0123456789ab"}
    assert history([first, second], "reward/mean") == REWARDS


# ---- MLflow


@pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")
def test_mlflow_has_each_step_and_goes_on_in_the_same_run(launch: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    for one in LAUNCHES:
        status = launch("mlflow", **one)["mlflow"]
    assert status["where"] == f"sqlite:///{tmp_path / 'runs/mlflow.db'}"
    client = MlflowClient(status["where"])
    experiment = client.get_experiment_by_name("streamrl")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("small", "FINISHED")
    assert run.data.params["learner.optimizer.lr"] == "0.001"
    for key, expected in (("reward/mean", REWARDS), ("critic/score/mean", REWARDS), ("eval/score", SCORES)):
        metrics = client.get_metric_history(run.info.run_id, key)
        assert [(metric.step, metric.value) for metric in metrics] == sorted(expected.items())
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"config.json", "export", "samples-8.json", "summary.json"}
    artifacts = tmp_path / "runs/mlflow-artifacts" / run.info.run_id / "artifacts"
    assert json.loads((artifacts / "summary.json").read_text())["eval_after"] == 0.25
    assert (artifacts / "export/model.safetensors").read_bytes() == b"weights"


# ---- trackio


def test_trackio_has_each_step_and_goes_on_in_the_same_run(launch: Any, tmp_path: Path) -> None:
    for one in LAUNCHES:
        launch("trackio", **one)
    with sqlite3.connect(tmp_path / "trackio/streamrl.db") as database:
        rows = database.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
        configs = [json.loads(config) for (config,) in database.execute("select config from configs")]
        artifacts = {name for (name,) in database.execute("select name from artifacts")}
    assert len({run_id for run_id, *_ in rows}) == 1
    assert {name for _, name, *_ in rows} == {"small-0123456789ab"}
    told = [(step, json.loads(metrics)) for _, _, step, metrics in rows]
    steps = [step for step, one in told if "reward/mean" in one]
    assert len(set(steps)) == len(steps)
    assert {step: one["reward/mean"] for step, one in told if "reward/mean" in one} == REWARDS
    assert {step: one["eval/score"] for step, one in told if "eval/score" in one} == SCORES
    (table,) = [one["samples"] for _, one in told if "samples" in one and _ == 8][-1:]
    assert table["_value"][0] == {"step": 8, "prompt": "1+1=", "completion": "2", "reward": 1.0}
    assert configs[-1]["learner"]["steps"] == 8
    assert {one["summary/eval_after"] for _, one in told if "summary/eval_after" in one} == {0.25}
    assert artifacts == {"config.json", "export"}


# ---- SwanLab


def test_swanlab_has_each_step_and_goes_on_under_the_same_id(launch: Any, tmp_path: Path) -> None:
    for one in LAUNCHES:
        launch("swanlab", **one)
    folders = sorted((tmp_path / "runs/small/trackers/swanlab").glob("run-*"))
    assert [folder.name.rpartition("-")[2] for folder in folders] == ["0123456789ab"] * 2
    told = of_swanlab(folders)
    assert dict(told["reward/mean"]) == dict(told["critic/score/mean"]) == REWARDS
    assert dict(told["eval/score"]) == SCORES
    assert "learner:" in (folders[1] / "files/config.yaml").read_text()
    assert list((folders[1] / "media/text").iterdir())


def of_swanlab(folders: list[Path]) -> dict[str, list[tuple[int, float]]]:
    """The numbers of all launches, by key."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    told: dict[str, list[tuple[int, float]]] = {}
    for folder in folders:
        reader = DataStoreReader()
        reader.open(next(folder.glob("*.swanlab")))
        for record in map(Record.FromString, reader):
            if record.HasField("scalar"):
                scalar = record.scalar
                told.setdefault(scalar.key, []).append((scalar.step, scalar.value.number))
        reader.close()
    return told


# ---- TensorBoard


def test_tensorboard_has_each_step_and_drops_those_that_come_again(launch: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for one in LAUNCHES:
        launch("tensorboard", **one)
    events = EventAccumulator(str(tmp_path / "runs/small/tensorboard"))
    events.Reload()
    told = {event.step: event.value for event in events.Scalars("reward/mean")}
    assert told == pytest.approx(REWARDS)
    assert {event.step: event.value for event in events.Scalars("critic/score/mean")} == pytest.approx(REWARDS)
    texts = set(events.Tags()["tensors"])
    assert texts >= {"config", "samples", "summary"}
    (table,) = events.Tensors("samples")[-1:]
    assert b"| 8 | 2\\|2= | a<br>b | None |" in table.tensor_proto.string_val[0]


def test_all_trackers_at_once_have_the_whole_run(launch: Any) -> None:
    names = ("wandb", "mlflow", "trackio", "swanlab", "tensorboard")
    status = launch(*names)
    assert {name: one["state"] for name, one in status.items()} == dict.fromkeys(names, "finished")
    assert {one["taken"] for one in status.values()} == {len(lines()) + 2}
