"""How many of each part there are, asked and changed over HTTP: the real gateway, the real owner behind its socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.gateway.local_gateway import LocalGateway, local_gateway
from support.learner.probe_learner import open_run
from support.runs.local_owner import local_owner

from streamrl.config import Config
from streamrl.config.estimates.resources import Problem
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.services.run import scaling
from streamrl.services.run.folder import RunFolder


async def scale(gateway: LocalGateway, body: Any) -> tuple[int, Any]:
    return await gateway.ask("/api/scale", body)


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    status, told = answer
    return status, told["error"]["code"]


async def test_the_parts_are_told_and_changed_and_the_run_remembers_them(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, replicas=2, owned=True) as gateway:
        assert await gateway.ask("/api/scale") == (200, {"rollout": {"now": 1, "serving": 2}, "reward": {"now": 1}})
        assert await scale(gateway, {"rollout": 2}) == (200, {"rollout": 2, "before": 1})
        assert await scale(gateway, {"rollout": 1, "reward": 3}) == (
            200,
            {"rollout": 1, "reward": 3, "before": {"rollout": 2, "reward": 1}},
        )
        assert await gateway.ask("/api/scale") == (200, {"rollout": {"now": 1, "serving": 2}, "reward": {"now": 3}})
        assert gateway.owner is not None
        assert gateway.owner.system.scaled == [{"rollout": 2}, {"rollout": 1, "reward": 3}]
    record = RunFolder.open(gateway.run.path).record
    assert (record.replicas, record.reward_workers) == (1, 3)


@pytest.mark.parametrize(
    ("body", "wanted", "param"),
    [
        ({"rollout": 0}, "invalid_value", "rollout"),
        ({"reward": -1}, "invalid_value", "reward"),
        ({"rollout": 10**6}, "invalid_value", "rollout"),
        ({"reward": 10**6}, "invalid_value", "reward"),
        ({"rollout": 10**30}, "invalid_value", "rollout"),
        ({"rollout": "x"}, "invalid_value", "rollout"),
        ({"rollout": "2"}, "invalid_value", "rollout"),
        ({"rollout": 1.5}, "invalid_value", "rollout"),
        ({"rollout": True}, "invalid_value", "rollout"),
        ({"rollout": None}, "invalid_value", "rollout"),
        ({"rollout": [2]}, "invalid_value", "rollout"),
        ({"rollout": 2, "reward": 0}, "invalid_value", None),
        ({"learner": 2}, "unknown_part", "learner"),
        ({"rollout": 2, "queue": 2}, "unknown_part", "queue"),
        ({"x" * 1000: 2}, "unknown_part", "x" * 80),
        ({}, "missing_parameter", None),
        ([], "invalid_value", None),
        (b"{", "invalid_json", None),
    ],
)
async def test_what_cannot_be_is_refused_with_a_code_and_nothing_changes(
    body: Any, wanted: str, param: str | None, tmp_path: Path
) -> None:
    async with local_gateway(tmp_path, owned=True) as gateway:
        answer = await scale(gateway, body)
        assert code(answer) == (400, wanted)
        if wanted != "invalid_json":
            assert answer[1]["error"]["param"] == param
        assert gateway.owner is not None
        assert gateway.owner.system.scaled == []
    assert RunFolder.open(gateway.run.path).record.replicas is None


async def test_too_little_memory_is_a_conflict_that_names_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack = Problem(key="rollout.replicas", what="the run needs about 3 GiB, and there is 1 GiB of memory free")
    monkeypatch.setattr(scaling, "check_growth", lambda before, after: [lack])  # a machine with less
    async with local_gateway(tmp_path, owned=True) as gateway:
        answer = await scale(gateway, {"rollout": 2})
        assert code(answer) == (409, "not_enough_resources")
        assert "rollout.replicas: the run needs about 3 GiB" in answer[1]["error"]["message"]
        assert gateway.owner is not None
        assert gateway.owner.system.scaled == []


async def test_a_run_that_starts_or_is_gone_is_not_ready(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, owned=True) as gateway:
        assert gateway.owner is not None
        gateway.owner.starts_again()
        assert code(await scale(gateway, {"rollout": 2})) == (503, "run_not_ready")
        gateway.owner.socket.unlink()
        assert code(await scale(gateway, {"rollout": 2})) == (503, "run_not_ready")
        assert code(await gateway.ask("/api/scale")) == (503, "run_not_ready")
    async with local_gateway(tmp_path / "other") as gateway:
        assert code(await scale(gateway, {"rollout": 2})) == (503, "run_not_ready")


async def test_changes_that_come_at_once_are_made_one_after_the_other(tmp_path: Path) -> None:
    config = Config(model=ModelConfig(preset="tiny-qwen3"), rollout=RolloutConfig(engine="scripted"))
    async with local_owner(open_run(config, tmp_path), config) as local:
        scale = local.owner.handlers()["scale"]
        answers = await asyncio.gather(*(scale(rollout=number) for number in (3, 2, 4, 1)))
        told = [one["rollout"] for one in local.system.scaled]
    assert sorted(told) == [1, 2, 3, 4]
    before = {answer["rollout"]: answer["before"] for answer in answers}
    assert [before[number] for number in told] == [1, *told[:-1]]
