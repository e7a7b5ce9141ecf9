"""Turns of a session that follow a grammar: what the model chose is trained, what was chosen for it is not."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.bytewise_model import write_bytewise_model
from support.gateway.local_gateway import LocalGateway
from support.gateway.sent_trajectories import SETTINGS
from support.gateway.torch_gateway import LONG, torch_gateway

from streamrl.buffers.ledger.records import Step
from streamrl.clock import VirtualClock
from streamrl.conversations.branches import Branch
from streamrl.gateway.auth import Scope
from streamrl.gateway.openai.bodies import CompletionRequest
from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.grammars import grammar_of
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.capture import LEAST_LEFT, Capture
from streamrl.gateway.sessions.session_body import HEADER, as_rollouts
from streamrl.gateway.sessions.sessions import Sessions
from streamrl.models.load import load_model
from streamrl.models.tokenizer import load_tokenizer, write_character_tokenizer
from streamrl.types import SamplingParams

SHARPER = 40.0
PRINTABLE = "[ -~]{24}"
"""Of the letters that the model has, somewhat more than a third."""


def write_sharp_model(folder: Path) -> None:
    """One that is sure of what it says: in each place its probability is nearly all on a few tokens."""
    write_bytewise_model(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] *= SHARPER
    save_file(tensors, path, metadata={"format": "pt"})


@asynccontextmanager
async def gateway_of(folder: Path, **options: Any) -> AsyncIterator[LocalGateway]:
    settings = {**LONG, "finish": write_sharp_model, "trains": True, "gateway": SETTINGS, **options}
    async with torch_gateway(folder, **settings) as gateway:
        assert gateway.queue is not None
        gateway.queue._actor._queue._journal.write(Step(0, []))  # its version was made by a step
        yield gateway


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


def chosen(folder: Path, prompt: list[int], sampled: list[int], logprobs: list[float]) -> list[bool]:
    """Whether the model itself would have chosen each sampled token, by transformers' own forward."""
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.inference_mode():
        own = torch.log_softmax(load_model(folder, "float32")(ids).logits[0, len(prompt) - 1 : -1].double(), dim=-1)
    scores = own.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
    left = scores - np.array(logprobs)
    assert (np.abs(left - math.log(LEAST_LEFT)) > 1e-3).all(), "one of them is too near to the bound to say"
    return (left > math.log(LEAST_LEFT)).tolist()


def trained(branch: Branch) -> list[tuple[int, bool]]:
    """The ids of a row, and whether they are trained."""
    row: list[tuple[int, bool]] = []
    for turn in branch.turns:
        row += [*((one, False) for one in turn.prompt_ids), *((one, True) for one in turn.token_ids)]
    return row


async def test_what_the_model_would_have_chosen_too_is_trained_and_nothing_else(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "1"}]
    expected: list[tuple[int, bool]] = []
    async with gateway_of(tmp_path) as gateway:
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
    async with gateway_of(tmp_path) as gateway:
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
    async with gateway_of(tmp_path, finish=write_bytewise_model) as gateway:
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
