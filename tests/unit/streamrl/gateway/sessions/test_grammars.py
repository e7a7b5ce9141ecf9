"""Turns of a session that follow a grammar: what the model chose is trained, what was chosen for it is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.bytewise_model import write_bytewise_model
from support.gateway.agent_sessions import chosen, grammar_gateway, trained
from support.gateway.local_gateway import LocalGateway

from streamrl.clock import VirtualClock
from streamrl.gateway.auth import Scope
from streamrl.gateway.openai.bodies import CompletionRequest
from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.grammars import grammar_of
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.capture import Capture
from streamrl.gateway.sessions.session_body import HEADER, as_rollouts
from streamrl.gateway.sessions.sessions import Sessions
from streamrl.models.tokenizer import load_tokenizer, write_character_tokenizer
from streamrl.types import SamplingParams

PRINTABLE = "[ -~]{24}"
"""Of the letters that the model has, somewhat more than a third."""


async def said(
    gateway: LocalGateway, messages: list[Any], **more: Any
) -> tuple[list[int], list[int], list[float], str]:
    """(ids of the prompt, sampled ids, their log-probs, text) of a turn."""
    headers = {"authorization": f"Bearer {gateway.token(Scope.GENERATE)}", HEADER: "agent"}
    body = {"model": "run", "messages": messages, "max_tokens": 64, "logprobs": True, "seed": 3, **more}
    status, answer = await gateway.ask("/v1/chat/completions", body, headers=headers)
    assert status == 200, answer
    (prompt,), (choice,) = answer["streamrl"]["prompt_token_ids"], answer["choices"]
    told = choice["streamrl"]
    return prompt, told["token_ids"], told["logprobs"], choice["message"]["content"]


async def test_what_the_model_would_have_chosen_too_is_trained_and_nothing_else(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "1"}]
    expected: list[tuple[int, bool]] = []
    async with grammar_gateway(tmp_path) as gateway:
        for _ in range(2):
            prompt, sampled, logprobs, text = await said(gateway, messages, structured_outputs={"regex": PRINTABLE})
            assert len(text) == 24
            own = chosen(tmp_path / "model", prompt, sampled, logprobs)
            assert {True, False} == set(own)
            assert prompt[: len(expected)] == [one for one, _ in expected]
            expected += [(one, False) for one in prompt[len(expected) :]]
            expected += zip(sampled, own, strict=True)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "2"}]
        (branch,) = gateway.actor._sessions.take("agent").branches()
    row = trained(branch)
    assert row == expected[: len(row)]
    assert not any(own for _, own in expected[len(row) :])


async def test_a_turn_without_a_grammar_is_trained_whole_behind_one_that_has_one(tmp_path: Path) -> None:
    async with grammar_gateway(tmp_path) as gateway:
        messages: list[Any] = [{"role": "user", "content": "1"}]
        *_, text = await said(gateway, messages, guided_regex=PRINTABLE)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "2"}]
        _, sampled, _, _ = await said(gateway, messages, max_tokens=8)
        session = gateway.actor._sessions.take("agent")
    (branch,) = session.branches()
    assert list(branch.turns[-1].token_ids) == sampled
    assert session.num_turns == 2


async def test_a_session_of_which_a_grammar_chose_everything_is_told_so_and_has_its_reward_refused(
    tmp_path: Path,
) -> None:
    async with grammar_gateway(tmp_path, finish=write_bytewise_model) as gateway:
        await said(gateway, [{"role": "user", "content": "1"}], guided_choice=["ja"])
        headers = {"authorization": f"Bearer {gateway.token(Scope.SUBMIT)}"}
        status, answer = await gateway.ask("/api/sessions/agent/reward", {"reward": 1.0}, headers=headers)
        assert (status, answer["error"]["code"]) == (400, "empty_trajectory")
        assert "grammars chose every token" in answer["error"]["message"]
        # Another call of it, and it has something.
        await said(gateway, [{"role": "user", "content": "2"}], max_tokens=4)
        status, answer = await gateway.ask("/api/sessions/agent/reward", {"reward": 1.0}, headers=headers)
        assert (status, answer["branches"], answer["turns"]) == (200, 1, 2)


def asked(**body: Any) -> tuple[ParsedRequest, CompletionRequest]:
    sent = CompletionRequest.model_validate({"model": "run", "prompt": [1], **body})
    prompts = [np.array([1], np.int32)]
    whole = ParsedRequest(prompts, 1, SamplingParams(), 0, (), (), False, False, True, (None,))
    return replace(whole, grammar=grammar_of(sent)), sent


@pytest.mark.parametrize(
    ("drawn", "told"),
    [({"temperature": 0.7}, "temperature = 0.7"), ({"top_k": 5, "min_p": 0.1}, "top_k = 5, min_p = 0.1")],
)
def test_where_rollouts_are_drawn_otherwise_a_grammar_is_refused(drawn: dict[str, Any], told: str) -> None:
    with pytest.raises(Refusal, match=f"rollout.sampling has {told}: leave out guided_regex") as refused:
        as_rollouts(*asked(guided_regex="a"), SamplingParams(**drawn))
    assert (refused.value.code, refused.value.param) == ("sampling_not_trained", "guided_regex")
    as_rollouts(*asked(), SamplingParams(**drawn))
    as_rollouts(*asked(guided_regex="a"), SamplingParams())


def test_the_token_that_no_request_has_room_behind_is_not_known_to_be_the_models(tmp_path: Path) -> None:
    write_character_tokenizer("ab", 64, tmp_path)
    sessions = Sessions(VirtualClock(), 60.0, 2**20)
    capture = Capture(sessions, "agent", asked(guided_regex="a*")[0], load_tokenizer(tmp_path))
    capture.begin()
    capture.take(0, Delta("", 0, [5, 6], [-0.5, -0.5], [], [(0, 0, 1)]))
    assert not capture.wants_scores
    capture.take(0, Delta("", 2, [7], [-0.5], [], [(2, 0, 1)], "length"))
    assert capture.wants_scores
    assert {index: row.tolist() for index, row in capture.to_score().items()} == {0: [1, 5, 6, 7]}
    capture.score(0, np.array([-9.0, -0.5], np.float32))  # of a context of four tokens
    capture.whole()
    capture.end()
    (branch,) = sessions.take("agent").branches()
    assert trained(branch) == [(1, False), (5, False), (6, True)]
