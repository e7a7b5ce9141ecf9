"""Adapters against the published packages: episodes in real child processes."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.repository import TESTS

from streamrl.environments.outcomes import Verdict
from streamrl.environments.processes.pool import EnvironmentPool, OpenEpisode
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.errors import ConfigError

Open = Callable[..., Any]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def episode(name: str, **options: Any) -> OpenEpisode:
            settings = WorkerSettings(name=name, options=options, memory_bytes=2**32, import_paths=[str(TESTS)])
            pool = await stack.enter_async_context(EnvironmentPool(settings))
            return await stack.enter_async_context(pool.episode())

        yield episode


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


LAKE = {"id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"], "make": {"is_slippery": False}}


async def test_a_walk_over_the_frozen_lake_to_the_goal(opened: Open) -> None:
    pytest.importorskip("gymnasium", reason="make test-environments")
    episode = await opened("gymnasium", **LAKE, instructions="You walk.")
    assert (await episode.reset({"seed": 3})).messages == [{"role": "user", "content": "You walk.\n0"}]
    assert (await episode.step(says("I fly")))[0]["content"] == "Name one action: left, down, right, up"
    for text, place in (("down", "4"), ("Not left, but DOWN!", "8"), ("right", "9"), ("down", "13"), ("right", "14")):
        assert await episode.step(says(text)) == [{"role": "user", "content": place}]
    assert await episode.step(says("right")) == Verdict(1.0, {"steps": 6.0, "invalid_actions": 1.0})


async def test_an_episode_that_a_limit_ends_is_worth_what_it_has_gathered(opened: Open) -> None:
    pytest.importorskip("gymnasium", reason="make test-environments")
    episode = await opened("gymnasium", id="CliffWalking-v1", actions=["up", "right", "down", "left"])
    await episode.reset({"seed": 0})
    await episode.step(says("up"))
    await episode.step(says("up"))
    assert await episode.truncated() == Verdict(-2.0, {"steps": 2.0, "invalid_actions": 0.0})


async def test_equal_seeds_are_equal_episodes(opened: Open) -> None:
    pytest.importorskip("gymnasium", reason="make test-environments")
    told = []
    for seed in (5, 5, 6):
        episode = await opened("gymnasium", id="Taxi-v4")
        told.append((await episode.reset({"seed": seed})).messages)
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": "NoSuchLake-v1"}, "NoSuchLake"),
        ({**LAKE, "actions": ["left"]}, "1 names of actions; its space has 4"),
        ({"id": "Pendulum-v1"}, "only a Discrete space has names"),
    ],
)
async def test_what_cannot_be_played_is_refused(opened: Open, options: dict[str, Any], text: str) -> None:
    pytest.importorskip("gymnasium", reason="make test-environments")
    with pytest.raises(ConfigError, match=text):
        await opened("gymnasium", **options)


async def test_a_class_in_gymnasiums_style_needs_no_package(opened: Open) -> None:
    episode = await opened("gymnasium", id="support.environments.games:Stairs", actions=["up", "down"])
    assert (await episode.reset({})).messages == [{"role": "user", "content": "step 0"}]
    assert await episode.step(says("up")) == [{"role": "user", "content": "step 1"}]
    assert await episode.step(says("up")) == Verdict(2.0, {"steps": 2.0, "invalid_actions": 0.0})


async def test_a_question_of_reasoning_gym_is_scored_by_the_package(opened: Open) -> None:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    for answer, reward in (("{}", 1.0), ("It is <answer>{}</answer>", 1.0), ("0", 0.01)):
        episode = await opened("reasoning_gym", task="leg_counting", seed=4)
        (message,) = (await episode.reset({"seed": 7})).messages
        entry = reasoning_gym.create_dataset("leg_counting", size=20, seed=4)[7]
        assert message["content"] == entry["question"]
        verdict = await episode.step(says(answer.format(entry["answer"])))
        assert verdict.reward <= 0.5 if reward < 1.0 else verdict.reward == 1.0


async def test_a_data_set_that_reasoning_gym_does_not_have_is_refused(opened: Open) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError, match="has no data set 'leg_countin'"):
        await opened("reasoning_gym", task="leg_countin")
