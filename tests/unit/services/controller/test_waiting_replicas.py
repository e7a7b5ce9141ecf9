"""What is said of a replica that has no process yet."""

import asyncio
from pathlib import Path

import pytest
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import Config, DeadlineConfig, ModelConfig, RayConfig
from streamrl.errors import DeadlineError
from streamrl.scheduling.placement import Supply
from streamrl.services.controller.nodes import Nodes
from streamrl.services.controller.parts import Parts

NODE = Supply("abcdefgh12345678", "gpu-1", {"GPU": 2.0}, {"GPU": 0.0})


def waited(folder: Path, others_serve: list[bool]) -> tuple[str, list[str]]:
    """(why a replica was given up that never came, what was said before). others_serve: at each look."""
    config = Config(
        model=ModelConfig(preset="tiny-qwen3"),
        rollout=RolloutConfig(resources={"GPU": 1.0}),
        ray=RayConfig(address="head:6379"),
        deadlines=DeadlineConfig(start_s=0.01),
    )
    told: list[str] = []
    nodes = Nodes(Parts(str(folder), config), open_run(config, folder), config, told.append, lambda: [NODE])
    nodes.home = Handle()

    async def wait() -> None:
        await nodes.place_replica("rollout-3", Handle(), lambda: others_serve.pop(0))

    with pytest.raises(DeadlineError) as given_up:
        asyncio.run(wait())
    return str(given_up.value), told


def test_a_replica_without_a_place_is_told_with_demand_and_supply_and_ends_a_run_that_has_no_other(
    tmp_path: Path,
) -> None:
    why, (told,) = waited(tmp_path, [False])
    figures = "it takes { GPU = 1 } of its node; free of what each node has: gpu-1 (abcdefgh): GPU 0 of 2"
    assert told == f"rollout-3 has no process yet after 0.01 s: {figures}"
    assert why == f"{told}; start Ray on a node that has it free"


def test_it_is_told_once_while_others_serve(tmp_path: Path) -> None:
    others_serve = [True, True, True, False]
    _, told = waited(tmp_path, others_serve)
    assert len(told) == 1
    assert not others_serve
