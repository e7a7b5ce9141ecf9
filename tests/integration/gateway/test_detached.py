"""`streamrl up --detach` returns when a client can use what it started."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs.finished_run import Finished

import streamrl as api

pytestmark = [pytest.mark.ray, pytest.mark.long]


def test_the_first_request_after_it_is_answered(
    train: Callable[..., Finished], streamrl: Callable[..., Finished], user_folder: Path
) -> None:
    run = user_folder / "runs/detached"
    keys = ("--rollout.engine", "scripted", "--learner.steps", "1000000", "--gateway.enabled", "true")
    up = train("detached", *keys, "--detach")
    try:
        assert up.code == 0, up.output
        with api.connect(run) as client:
            (sample,) = client.sample("1+1=", max_tokens=3)
        assert sample.token_ids
        # A copy is a run of its own: ending it leaves the original alone. What the run removes meanwhile is left out.
        left_out = shutil.ignore_patterns("*.new", "*.tmp", "checkpoints", "queue")
        shutil.copytree(run, user_folder / "runs/copied", ignore=left_out)
        copy = streamrl("down", str(user_folder / "runs/copied"), "--json")
        assert json.loads(copy.output)["was_up"] is False
        assert json.loads(streamrl("status", str(run), "--json").output)["state"] == "running"
    finally:
        down = streamrl("down", str(run))
    assert down.code == 0, down.output
    for folder in (run, user_folder / "runs/copied"):
        shutil.rmtree(folder)
