"""`streamrl eval --k` and `--tasks`: what is measured goes to the run's file, its status and its summary."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from streamrl.config import dump
from streamrl.config.schema.run import Config, GatewayConfig, ModelConfig
from streamrl.errors import ConfigError, RunFolderError
from streamrl.observability.evaluations import EvaluationRecord, append_evaluations, read_evaluations
from streamrl.services.cli.main import run_app
from streamrl.services.commands import run_verbs
from streamrl.services.commands.exchange import evaluation
from streamrl.services.commands.exchange.harness import MISSING
from streamrl.services.run.control.listener import listen_at
from streamrl.services.run.control.server import ControlServer, EventHub
from streamrl.services.run.folder import Launch, RunFolder
from streamrl.services.run.liveness import ProcessId

MEASURED = {"version": "0.7", "step": 7, "eval/score": 0.4, "eval/failed": 0, "avg@8": 0.4, "pass@8": 0.9}


def folder_of(place: Path, *, gateway: bool = False) -> RunFolder:
    path = place / "runs" / "mine"
    path.mkdir(parents=True)
    run = RunFolder.create(path, "mine")
    config = Config(name="mine", model=ModelConfig(preset="tiny-qwen3"), gateway=GatewayConfig(enabled=gateway))
    run.config_path.write_text(dump(config))
    return run


@asynccontextmanager
async def answering(run: RunFolder, asked: list[dict[str, Any]], url: str = "") -> AsyncIterator[None]:
    """The owner of the run answers `eval`."""

    async def measure(**given: Any) -> dict[str, Any]:
        asked.append(given)
        return MEASURED

    with tempfile.TemporaryDirectory() as folder:
        control, me = Path(folder) / "control", ProcessId.own()
        launch = Launch(owner=me, watcher=me, runtime=folder, control=str(control), started_ns=1, gateway=url)
        run.start_launch(launch)
        async with ControlServer(listen_at(control), EventHub(), {"eval": measure}):
            yield


async def test_samples_of_the_held_out_items_are_measured_and_kept(tmp_path: Path) -> None:
    run, asked = folder_of(tmp_path), []
    async with answering(run, asked):
        told = await asyncio.to_thread(evaluation.evaluate_samples, run, 8, None)
    assert asked == [{"samples": 8, "temperature": 1.0}]
    (record,) = read_evaluations(run.evaluations_path)
    assert (record.name, record.step, record.version, record.samples) == ("held-out@8", 7, "0.7", 8)
    assert record.scores == {"score": 0.4, "failed": 0, "avg@8": 0.4, "pass@8": 0.9}
    assert told["held-out@8"]["pass@8"] == 0.9


def test_a_later_status_shows_them(tmp_path: Path) -> None:
    run = folder_of(tmp_path)
    assert "evaluations" not in run_verbs.status(run)
    append_evaluations(run.evaluations_path, [record_of(0.5)])
    assert run_verbs.status(run)["evaluations"]["gsm8k"]["acc"] == 0.5


def record_of(score: float) -> EvaluationRecord:
    return EvaluationRecord(time_ns=1, name="gsm8k", step=3, version="0.3", scores={"acc": score}, source="lm-eval")


def test_the_summary_of_a_run_that_ended_meanwhile_has_them(tmp_path: Path) -> None:
    run = folder_of(tmp_path)
    run.write_summary({"eval_after": 0.9, "steps": 4})
    evaluation.keep(run, [record_of(0.5)])
    assert json.loads(run.summary_path.read_text()) == {
        "eval_after": 0.9,
        "steps": 4,
        "evaluations": {"gsm8k": {"acc": 0.5, "step": 3, "version": "0.3", "source": "lm-eval"}},
    }


def test_the_summary_at_the_end_has_those_from_before(tmp_path: Path) -> None:
    run = folder_of(tmp_path)
    evaluation.keep(run, [record_of(0.5)])
    told = run.write_summary_with_evaluations({"steps": 4})
    assert told["evaluations"]["gsm8k"]["acc"] == 0.5
    assert run.summary() == told


@pytest.mark.parametrize(
    ("samples", "temperature", "told"),
    [(0, None, "from 1 to 1024"), (5000, None, "from 1 to 1024"), (8, 0.0, "all the same"), (8, -1.0, "at least 0")],
)
def test_numbers_that_say_nothing_are_refused(
    tmp_path: Path, samples: int, temperature: float | None, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        evaluation.evaluate_samples(folder_of(tmp_path), samples, temperature)


def test_a_run_that_is_not_up_says_what_to_do(tmp_path: Path) -> None:
    run = folder_of(tmp_path)
    with pytest.raises(RunFolderError, match=r"is not up; `streamrl up .*` starts or resumes it"):
        evaluation.evaluate_samples(run, 8, None)
    run.write_summary({"steps": 4})
    with pytest.raises(RunFolderError, match=r"is finished, .*lm_eval --model hf"):
        evaluation.evaluate_samples(run, 8, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--limit", "3"], "name some with --tasks"),
        (["--chat"], "name some with --tasks"),
        (["--temperature", "0.5"], "give how many of each item"),
        (["--tasks", "gsm8k", "--k", "8"], "give one of them"),
        (["--tasks", ","], "names no task"),
        (["--tasks", "gsm8k", "--include", "nowhere"], "--include nowhere: no such folder"),
        (["--tasks", "gsm8k", "--limit", "0"], "--limit 0: a number of items"),
    ],
)
def test_words_that_do_not_go_together_are_one_message(
    tmp_path: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder_of(tmp_path)
    assert run_app(["eval", str(run.path), *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="of an environment without the package")
def test_without_the_package_it_says_which_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["eval", str(folder_of(tmp_path).path), "--tasks", "gsm8k"]) == 2
    assert MISSING in capsys.readouterr().err
