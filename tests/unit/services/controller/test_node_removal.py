"""Log files on another node that cannot be removed: told once, and the run goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.buffers.segments.removal import remove_segments
from streamrl.buffers.segments.spare_files import SpareFiles
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.services.controller.nodes import Nodes
from streamrl.services.controller.parts import Parts
from streamrl.services.weights.node import NodeSlot, remove_on

NODE = "0123456789ab"
GOING = [f"nodes/{NODE}/completions/1.arrow"]


def remove_here(run: Path, paths: list[str]) -> None:
    for held in remove_segments(run, paths, SpareFiles(run, 0)):
        held.let_go()


def seat(remove: Callable[..., Any]) -> NodeSlot:
    return NodeSlot(NODE, f"nodes/{NODE}", Handle(remove=remove))


def as_ray_does(function: Callable[..., Any]) -> Callable[..., Any]:
    """What an actor's method raises, in the envelope in which its caller gets it."""

    def called(*args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            raise ray.exceptions.RayTaskError("remove", "the remote traceback", error).as_instanceof_cause() from error

    return called


def removed(remove: Callable[..., Any]) -> str | None:
    async def call() -> str | None:
        return await remove_on(seat(remove), GOING)

    return asyncio.run(call())


def test_a_node_that_removes_them_is_not_told_of(tmp_path: Path) -> None:
    (tmp_path / GOING[0]).parent.mkdir(parents=True)
    (tmp_path / GOING[0]).touch()
    assert removed(as_ray_does(lambda paths: remove_here(tmp_path, paths))) is None
    assert not (tmp_path / GOING[0]).exists()


def test_a_node_that_cannot_remove_them_is_told_of_with_its_error_and_the_file(tmp_path: Path) -> None:
    (tmp_path / GOING[0]).mkdir(parents=True)
    told = removed(as_ray_does(lambda paths: remove_here(tmp_path, paths)))
    assert told is not None
    assert f"node {NODE}" in told
    assert "IsADirectoryError" in told
    assert GOING[0] in told


def test_a_node_that_went_away_is_not_told_of() -> None:
    def gone(paths: list[str]) -> None:
        raise ray.exceptions.ActorDiedError

    assert removed(gone) is None


def test_a_node_that_fails_at_every_look_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / GOING[0]).mkdir(parents=True)
    config = Config(model=ModelConfig(preset="tiny-qwen3"))
    told: list[str] = []
    nodes = Nodes(Parts(str(tmp_path), config), open_run(config, tmp_path), config, told.append)
    nodes.home = Handle()
    nodes._seats["ray's id"] = seat(as_ray_does(lambda paths: remove_here(tmp_path, paths)))

    async def look() -> None:
        for _ in range(3):
            await nodes.tidy(Handle(released_far_files=lambda: GOING))

    asyncio.run(look())
    assert len(told) == 1
