"""A live run that a program steers over its gateway: scaled, waited for, its weights and its samples read."""

import asyncio
import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.runs.live_run import LiveRun, live_run

import streamrl
from streamrl.errors import RequestError
from streamrl.types import Version
from streamrl.weights.tensors import weights_digest

pytestmark = [pytest.mark.ray, pytest.mark.long]

RUN = (
    *("--rollout.engine", "scripted", "--rollout.replicas", "1", "--eval.every", "100000"),
    *("--learner.steps", "100000", "--checkpoint.every", "5", "--gateway.enabled", "true"),
)


async def steered(folder: Path, to: Path) -> tuple[Any, Version, Any]:
    async with streamrl.connect(folder) as client:
        with pytest.raises(RequestError, match="unknown_part"):
            await client.scale(learner=2)
        scaled = await client.scale(rollout=2, reward=2)
        version = await client.wait_for_version(8, timeout_s=100)
        with pytest.raises(RequestError, match="unknown_version"):
            await client.weights(to, "0.1")
        return scaled, version, await client.weights(to)


def samples(folder: Path, query: str) -> dict[str, Any]:
    url = json.loads((folder / "run.json").read_text())["launch"]["gateway"]
    token = (folder / "gateway-token.control").read_text()
    request = urllib.request.Request(f"{url}/api/samples?{query}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def check_tokens(trained: list[dict[str, Any]]) -> None:
    """What the learner kept lies over the tokens: this run's steps are small enough for all of them."""
    assert {one["lacks"] for one in trained} == {None}
    figured = [one for one in trained if one["entropy"] is not None]
    assert figured
    for one in figured:
        assert len(one["entropy"]) == len(one["mismatch"]) == len(one["tokens"])
        assert {name for _, name in one["mask"]} <= {"trained", "clipped", "truncated", "rejected"}
    for one in trained:
        if one["entropy"] is None:
            assert (one["mask"], one["advantage"]) == ([[0, "left_out"]], 0.0)


def check_samples(run: LiveRun) -> None:
    page = samples(run.folder, "limit=200")
    assert len(page["samples"]) == 200
    trained = [one for one in page["samples"] if one["step"] is not None]
    assert trained
    for one in trained:
        oldest = int(one["version_spans"][0][1].split(".")[1])
        assert oldest <= one["step"] <= run.steps()[-1]["step"] + 100
        assert one["stream"] == "train"
        assert len(one["tokens"]) == len(one["token_ids"]) == len(one["logprobs"])
    check_tokens(trained)
    following = samples(run.folder, f"limit=1&before={page['next']}")["samples"]
    names = {(one["group"], one["sample"]) for one in page["samples"]}
    assert len(names) == 200
    assert not {(one["group"], one["sample"]) for one in following} & names


def test_a_program_steers_a_live_run(user_folder: Path, streamrl_path: Path, tmp_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "steered", *RUN) as run:
        assert run.read_until(lambda event: event["kind"] == "gateway"), run.end()
        scaled, version, weights = asyncio.run(steered(run.folder, tmp_path / "policy.safetensors"))
        assert scaled == {"rollout": 2, "reward": 2, "before": {"rollout": 1, "reward": 1}}
        assert version.step >= 8
        run.until_step(weights.version.step + 20)
        check_samples(run)
        run.process.send_signal(signal.SIGINT)
        assert run.end()[0] == 130
    assert weights.version >= version
    digests = {one["step"]: one["weights/digest"] for one in run.steps()}
    assert digests[weights.version.step] == weights.digest
    assert weights_digest(load_file(weights.path).items()) == weights.digest
    assert {"rollout replicas: 1 -> 2", "reward workers: 1 -> 2"} <= set(run.notices())
