"""A session's turns are trained with the experts that its tokens went to in the engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.routed_model import CHOSEN, LAYERS, own_routes, write_routed_model
from support.gateway.agent_sessions import call, ids_of, reward
from support.gateway.sent_trajectories import SETTINGS
from support.gateway.torch_gateway import LONG, torch_gateway

from streamrl.buffers.ledger.records import Step
from streamrl.config.schema.learner import LearnerConfig
from streamrl.gateway.openai.choice import Choice, joined, pieces
from streamrl.gateway.token_updates import TokenUpdate, final_update
from streamrl.models.load import load_model
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.types import FinishReason, GenerationResult, RouteArray, Version, VersionSpan

SEEDED = {"temperature": 1.0, "seed": 3, "max_tokens": 6}


def write_model(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    write_routed_model(folder, 0)


def options(*, replay: bool) -> dict[str, Any]:
    learner = LearnerConfig(router_replay=replay)
    return {**LONG, "finish": write_model, "trains": True, "gateway": SETTINGS, "learner": learner}


async def two_turns(gateway: Any) -> tuple[list[int], list[int]]:
    """(ids of the whole branch, its sampled ones)."""
    gateway.queue._actor._queue._journal.write(Step(0, []))  # its version was made by a step
    first = await ids_of(gateway, "agent", [5, 6, 7, 8], **SEEDED)
    second = await ids_of(gateway, "agent", [5, 6, 7, 8, *first, 9, 10], **SEEDED)
    return [5, 6, 7, 8, *first, 9, 10, *second], [*first, *second]


async def test_rows_of_a_session_have_the_experts_of_all_its_turns(tmp_path: Path) -> None:
    async with torch_gateway(tmp_path, **options(replay=True)) as gateway:
        ids, _ = await two_turns(gateway)
        sessions = gateway.actor._sessions
        (branch,) = sessions.take("agent").branches()
        sessions.reopen("agent")
        own = own_routes(load_model(tmp_path / "model", "float32"), np.array(ids))
        lengths = [len(turn.routes) for turn in branch.turns]
        assert lengths == [10, len(ids)]
        for turn in branch.turns:
            # Of a token that predicts nothing the engine does not compute the last layer.
            known = (turn.routes >= 0).all(-1)
            assert np.array_equal(np.sort(turn.routes, axis=-1)[known], own[: len(known)][known])
            assert known[-len(turn.token_ids) - 1 : -1].all()
            assert not known[-1].any()
        status, told = await reward(gateway, "agent")
        assert (status, told["branches"], told["turns"]) == (200, 1, 2)


async def test_a_run_that_replays_nothing_tells_nothing(tmp_path: Path) -> None:
    async with torch_gateway(tmp_path, **options(replay=False)) as gateway:
        await two_turns(gateway)
        (branch,) = gateway.actor._sessions.take("agent").branches()
    assert [turn.routes for turn in branch.turns] == [None, None]


async def test_a_request_without_a_session_is_not_sent_its_routes(tmp_path: Path) -> None:
    async with torch_gateway(tmp_path, **options(replay=True)) as gateway:
        told: list[TokenUpdate] = []
        take = Choice.take
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Choice, "take", lambda choice, news: (told.append(news), take(choice, news))[1])
            status, _ = await call(gateway, None, [5, 6, 7], **SEEDED)
            assert status == 200
            assert told[-1].routes is None
            await ids_of(gateway, "agent", [5, 6, 7], **SEEDED)
            assert told[-1].routes is not None


# ---- a choice


def routes_of(count: int) -> RouteArray:
    return np.arange(count * LAYERS * CHOSEN, dtype=np.int16).reshape(count, LAYERS, CHOSEN)


def result(count: int, prompt: int = 3) -> GenerationResult:
    ids = np.array([1 + place % 8 for place in range(count)], np.int32)
    spans = (VersionSpan(0, Version(0, 1)),)
    ended = GenerationResult("r", ids, np.zeros(count, np.float32), spans, FinishReason.LENGTH)
    return replace(ended, routes=routes_of(prompt + count))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("model")
    write_routed_model(folder, 0)
    return load_tokenizer(folder)


@pytest.mark.parametrize("most", [2, 3, 100])
def test_a_choice_that_is_told_in_parts_has_its_routes_once_and_whole(tokenizer: TextTokenizer, most: int) -> None:
    choice = Choice(0, tokenizer, [])
    deltas = [choice.take(one) for one in pieces(final_update(result(7), routes=True), most)]
    assert [one.routes is None for one in deltas] == [True] * (len(deltas) - 1) + [False]
    assert np.array_equal(joined(deltas).routes, routes_of(10))


def test_a_choice_that_a_stop_string_ends_has_the_routes_of_what_is_left(tokenizer: TextTokenizer) -> None:
    whole = final_update(result(7), routes=True)
    text = tokenizer.decode(np.array(whole.token_ids, np.int32))
    choice = Choice(0, tokenizer, [text[1:3]])
    delta = choice.take(whole)
    assert choice.cut
    assert np.array_equal(delta.routes, routes_of(3 + len(delta.token_ids)))
    assert len(delta.token_ids) < 7
