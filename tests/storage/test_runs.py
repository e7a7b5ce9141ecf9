"""Whole runs whose second place is a bucket: killed, gone on with from the bucket alone; and bad places, refused."""

import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs
from support.runs.live_run import live_run

from streamrl.config import load
from streamrl.config.schema.run import ModelConfig
from streamrl.reference import Reference
from streamrl.storage.open import open_store
from streamrl.storage.version_sets import VersionSets, version_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(170)]

STEPS, EVERY = 60, 4
SAME = ("step", "loss/policy", "grad/norm", "weights/digest")
OVERRIDES = (
    *("--rollout.deterministic", "true", "--rollout.update_mode", "drain", "--learner.max_staleness", "0"),
    *("--learner.steps", str(STEPS), "--checkpoint.every", str(EVERY), "--eval.every", "100000"),
    *("--eval.max_items", "1", "--observe.trace", "false", "--rollout.replicas", "1"),
)


def steps_of(folder: Path) -> list[list[Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[line[key] for key in SAME] for line in lines if "loss/policy" in line]


def stored(address: str) -> list[int]:
    return [version_of(one).step for one in VersionSets(open_store(address)).search().sets]


def test_a_run_whose_machine_is_gone_makes_the_weights_of_an_undisturbed_one(
    user_folder: Path, streamrl_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("--checkpoint.folder", f"s3://{bucket}/runs")
    with live_run(user_folder, streamrl_path, "gone", *OVERRIDES, *place) as run:
        # What the store has is known by its own listing: uploads are beside the steps.
        while max(stored(f"s3://{bucket}/runs/gone"), default=0) == 0:
            assert run.read_until(lambda event: event["kind"] == "step"), "the run ended before a checkpoint was stored"
        # All of it at once, as with its machine.
        everything = [run.watcher(), *run.watcher().children(recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert psutil.wait_procs(everything, timeout=30)[1] == []
        run.process.wait()
    first = stored(f"s3://{bucket}/runs/gone")[0]
    shutil.rmtree(run.folder)
    with live_run(user_folder, streamrl_path, "gone", *OVERRIDES, *place) as again:
        code, err = again.end()
    assert code == 0, err
    assert again.events_of("resumed")[0]["checkpoint"] >= first
    assert any("comes from s3://" in text for text in again.notices())
    assert stored(f"s3://{bucket}/runs/gone")[0] == STEPS
    # The synchronous loop in one process, which a run of staleness 0 is equal to (invariant 4).
    monkeypatch.syspath_prepend(user_folder)
    config = structs.replace(load(again.folder / "config.toml"), model=ModelConfig(path=str(again.folder / "model")))
    calm = list(Reference(config).steps())
    assert steps_of(again.folder) == [[one.step, one.loss, one.grad_norm, one.digest] for one in calm]
    assert len(calm) == STEPS
    written = [path for path in again.folder.rglob("*") if path.is_file()]
    assert not any(b"secret-of-the-tests" in path.read_bytes() for path in written)


@pytest.mark.usefixtures("denying")
def test_a_bucket_without_rights_is_one_message_from_check_and_from_up(user_folder: Path, streamrl_path: Path) -> None:
    for verb in ("check", "up"):
        ended = subprocess.run(
            [streamrl_path, verb, "base.toml", "--name", "denied", "--checkpoint.folder", "s3://bucket/x"],
            cwd=user_folder,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.returncode == 2, ended.stderr
        assert ended.stderr.startswith("streamrl: checkpoint.folder: ")
        assert len(ended.stderr.splitlines()) == 1
        assert "Traceback" not in ended.stderr
    assert not (user_folder / "runs" / "denied").exists()
