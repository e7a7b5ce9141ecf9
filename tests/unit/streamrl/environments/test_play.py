"""Whole episodes: an environment in a real child process, and a model that says what the test tells it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.environments.spoken import TOOLS, Model, chat_of, rollout_of
from support.repository import TESTS

from streamrl.clock import SystemClock
from streamrl.environments.episode import EpisodeLimits
from streamrl.environments.play import EndedEpisode, EpisodeRecord, Player, row_of
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.types import FinishReason, GenerationRequest, GenerationResult

TURNS_OF_MANY_TRIES = 60
"""More than the model can be asked by an episode that is lost with others before it has a process of its own."""
LIMITS = EpisodeLimits(max_turns=5, max_tokens=500, context=300, timeout_s=60.0)


class Played:
    """Plays episodes of one environment, and keeps what was told."""

    def __init__(self, folder: Path, pool: EnvironmentPool, limits: EpisodeLimits) -> None:
        self.chat, self.tokenizer = chat_of(folder, TOOLS)
        self.told: list[str] = []
        clock, tell = SystemClock(), self.told.append
        self._player = Player(pool, limits, self.chat, clock, retries=2, truncated_reward=-1.0, tell=tell)

    async def __call__(self, *texts: str, generate: Any = None, row: Any = None) -> EndedEpisode:
        model = self.model = Model(self.tokenizer, texts)
        rollout = rollout_of(self.tokenizer)
        return await self._player.play(replace(rollout, row=row or rollout.row), generate or model)


@pytest.fixture
async def played(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as opened:

        async def make(name: str, limits: EpisodeLimits = LIMITS, **options: Any) -> Played:
            given = WorkerSettings(
                name=name if ":" in name else f"support.environments.games:{name}",
                options=options,
                memory_bytes=2**31,
                import_paths=[str(TESTS)],
            )
            pool = await opened.enter_async_context(EnvironmentPool(given, timeout_s=20.0))
            return Played(tmp_path, pool, limits)

        yield make


async def test_an_episode_to_its_end(played) -> None:
    play = await played("Echo")
    ended = await play("a", "b", "c")
    assert ended.finish_reason is FinishReason.STOP
    (branch,) = ended.branches
    assert branch.finish_reason == "stop"
    assert [len(turn.token_ids) for turn in branch.turns] == [2, 2, 2]
    record = json.loads(ended.payload('{"answer":"2"}'))
    assert record["answer"] == "2"
    found = record["environment"]
    assert (found["reward"], found["components"], found["final"], found["turns"]) == (1.0, {"heard": 3.0}, "c", 3)
    assert json.loads(found["info"])["row"] == {"prompt": "1+1="}


async def test_one_that_a_limit_ends_has_the_reward_that_the_environment_says_or_the_runs(played) -> None:
    limits = EpisodeLimits(max_turns=2, max_tokens=500, context=300, timeout_s=60.0)
    ended = await (await played("Echo", limits))("a", "b")
    assert ended.record == EpisodeRecord(0.5, {}, "b", 2, 0, "max_turns")
    assert ended.finish_reason is FinishReason.LENGTH
    assert [branch.finish_reason for branch in ended.branches] == ["length"]
    cut = await (await played("Plain", limits))("a" * 60)
    assert cut.record is not None
    assert (cut.record.reward, cut.record.limit) == (-1.0, "max_new_tokens")


async def test_one_that_fails_is_begun_anew_and_asks_the_same(played, tmp_path: Path) -> None:
    play = await played("Bad", how="raises", marks=str(tmp_path / "marks"), after=3)
    ended = await play("a", "b", "c")
    assert ended.finish_reason is FinishReason.STOP
    assert ended.faults == 2
    assert len(play.told) == 2
    assert "p.0/3 (row '1+1='), turn 1: raised: support.environments.games:Bad.step raised ValueError" in play.told[0]
    asked = [(request.prompt_ids.tolist(), request.seed) for request in play.model.asked]
    assert asked == [asked[0]] * 3


async def test_one_that_fails_again_and_again_ends_as_an_error(played) -> None:
    play = await played("Bad", how="nan")
    ended = await play("a", "b", "c")
    assert ended.finish_reason is FinishReason.ERROR
    assert "the reward is nan" in ended.error
    assert ended.faults == 3
    (branch,) = ended.branches
    assert branch.finish_reason == "error"
    assert sum(len(turn.token_ids) for turn in branch.turns) == 0
    assert ended.payload("{}") == "{}"


async def test_one_that_ends_its_own_process_again_and_again_ends_as_an_error(played) -> None:
    """By the code with which a process ends itself over another call: alone in it there is no other."""
    ended = await (await played("support.environments.odd_games:Leaving"))(*"abcdefghi")
    assert ended.finish_reason is FinishReason.ERROR
    assert "exited with code 72" in ended.error


async def test_one_whose_first_prompt_leaves_no_room_has_failed_and_is_not_trained(played) -> None:
    play = await played("Echo", EpisodeLimits(max_turns=2, max_tokens=500, context=4, timeout_s=60.0))
    ended = await play("a")
    assert ended.finish_reason is FinishReason.ERROR
    assert ended.record is None
    assert ended.error.startswith("p.0/3 (row '1+1='): ")
    assert "leaves no room for a turn (environment.max_tokens)" in ended.error
    assert play.told == [ended.error]
    assert play.model.asked == []


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_what_the_engine_gives_up_ends_the_episode(played, reason: FinishReason) -> None:
    play = await played("Echo")

    async def generate(request: GenerationRequest) -> GenerationResult:
        if len(play.model.asked) == 1:
            ids, logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
            return GenerationResult(request.request_id, ids, logprobs, (), reason, "why")
        return play.model.answer(request)

    ended = await play("a", generate=generate)
    assert (ended.finish_reason, ended.error, ended.record) == (reason, "why", None)
    assert [branch.finish_reason for branch in ended.branches] == [reason.value]


def test_what_reset_is_given() -> None:
    assert row_of('{"answer":"2"}', "1+1=") == {"prompt": "1+1=", "answer": "2"}
    assert row_of('{"prompt":"mine"}', "1+1=") == {"prompt": "mine"}


@pytest.mark.long
async def test_of_many_that_share_a_process_only_those_that_end_it_fail(played) -> None:
    play = await played("Bad")
    rows = [{"how": "dies" if place % 8 == 3 else "waits"} for place in range(24)]
    ended = await asyncio.gather(*(play(*"a" * TURNS_OF_MANY_TRIES, row=row) for row in rows))
    failed = [place for place, one in enumerate(ended) if one.finish_reason is FinishReason.ERROR]
    assert failed == [3, 11, 19]
    assert all("died: signal 9" in ended[place].error for place in failed)
    assert [(place, one.faults) for place, one in enumerate(ended) if one.faults and place not in failed] == [], (
        play.told
    )
