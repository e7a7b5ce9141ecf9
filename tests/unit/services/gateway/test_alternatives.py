"""The likeliest tokens and the prompt's log-probs, from a replica's news to what clients of each route read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openai
import pytest
from support.gateway.local_gateway import Direct, LocalGateway, events, local_gateway, until

from streamrl.gateway.token_updates import TokenUpdate
from streamrl.models.tokenizer import load_tokenizer
from streamrl.services.gateway.answering import EVENT_TOKENS
from streamrl.types import MOST_TOP_LOGPROBS, FinishReason, GenerationRequest, PromptLogprobs, TopLogprobs

MOST = 120
PROMPT = [1, 4, 5, 6]
LM_EVAL = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
"""What lm-evaluation-harness sends with prompts of ids, for log-likelihoods."""


def own(ids: list[int]) -> list[float]:
    """The log-prob of each of some tokens, all of them different."""
    return [-(1 + place) / 8 for place in range(len(ids))]


def others(ids: list[int], k: int) -> TopLogprobs:
    """In every even place the token itself is the likeliest, its log-prob off by a bit, and in every odd one it is not
    among them. In the last column there is none."""
    table, logprobs = np.full((len(ids), k), -1, np.int32), np.full((len(ids), k), -np.inf, np.float32)
    for place, token_id in enumerate(ids):
        row = [token_id if place % 2 == 0 else 14, 13, 12, 11, 10, 9, 8, 7][: max(1, k - 1)]
        table[place, : len(row)] = row
        top = np.float32(own(ids)[place]) if place % 2 == 0 else np.float32(-0.0625)
        logprobs[place, : len(row)] = np.nextafter(top, np.float32(-9)) - np.arange(len(row), dtype=np.float32)
    return TopLogprobs(table, logprobs)


class Telling:
    """A replica that tells what a request asks for: its first token as news, and then, unless it is `stuck`, all."""

    def __init__(self, *, stuck: bool = False, broken: bool = False) -> None:
        self.news: asyncio.Queue[list[TokenUpdate]] = asyncio.Queue()
        self.news.put_nowait([])  # with its version
        self.asked: list[GenerationRequest] = []
        self._stuck = stuck
        self._broken = broken

    async def open_client_requests(self) -> None: ...

    async def client_updates(self, session: int, gateway: str) -> tuple[tuple[int, int], list[TokenUpdate]]:
        return (0, 1), await self.news.get()

    async def order_client_requests(
        self, session: int, begin: list[GenerationRequest], abort: list[str], gateway: str
    ) -> None:
        self.asked += begin
        for request in begin:
            first, whole = self._told(request)
            self.news.put_nowait([first])
            if not self._stuck:
                self.news.put_nowait([whole])

    def _told(self, request: GenerationRequest) -> tuple[TokenUpdate, TokenUpdate]:
        count, k = request.sampling.max_new_tokens, request.top_logprobs
        ids = [3 + place % 4 for place in range(count)]
        known = 0 if request.so_far is None else request.so_far.end
        told = others(ids, k) if k else None
        if told is not None:
            told.token_ids[:known], told.logprobs[:known] = -1, -np.inf
        read = request.prompt_ids[1:].tolist()
        logprobs = np.array([np.nan for _ in read] if self._broken else own(read), np.float32)
        prompt = PromptLogprobs(logprobs, others(read, k) if k else None) if request.prompt_logprobs else None
        whole = TokenUpdate(
            request.request_id, 0, ids, own(ids), [(0, 0, 1)], FinishReason.LENGTH.value, "", told, prompt
        )
        end = known + 1
        first = None if told is None else TopLogprobs(told.token_ids[:end], told.logprobs[:end])
        piece = {"token_ids": ids[:end], "logprobs": own(ids[:end]), "finish_reason": "", "top_logprobs": first}
        return msgspec.structs.replace(whole, **piece), whole


@asynccontextmanager
async def telling_gateway(folder: Path, *replicas: Telling) -> AsyncIterator[tuple[LocalGateway, dict[str, Direct]]]:
    """The gateway of a run with `rollout.engine = "torch"`, whose replicas are these."""
    async with local_gateway(folder, replicas=0, most=MOST, engine="torch", ready=False) as gateway:
        handles = {f"rollout-{number}": Direct(one) for number, one in enumerate(replicas or [Telling()])}
        await gateway.actor.serve(0, handles)
        await until(lambda: len(gateway.actor._pool.versions) == len(handles))
        yield gateway, handles


async def streamed(gateway: LocalGateway, path: str, body: dict[str, Any]) -> list[Any]:
    headers = {"authorization": f"Bearer {gateway.token()}"}
    async with gateway.http.post(gateway.url + path, json={"stream": True, **body}, headers=headers) as response:
        assert response.status == 200, await response.text()
        return [event async for event in events(response)]


async def test_a_completion_tells_the_likeliest_in_the_place_of_each_token(tmp_path: Path) -> None:
    async with telling_gateway(tmp_path) as (gateway, _):
        _, named = await gateway.complete(logprobs=3, max_tokens=2, return_tokens_as_token_ids=True)
        _, texts = await gateway.complete(logprobs=3, max_tokens=2)
        _, none = await gateway.complete(logprobs=0, max_tokens=2)
        tokenizer = load_tokenizer(tmp_path / "model")
    first, second = named["choices"][0]["logprobs"]["top_logprobs"]
    assert list(first) == ["token_id:3", "token_id:13"]
    assert first["token_id:3"] == -0.125 == max(first.values())
    assert list(second) == ["token_id:14", "token_id:4", "token_id:13"]
    assert second["token_id:4"] == -0.25
    letters = {f"token_id:{token_id}": tokenizer.decode(np.array([token_id])) for token_id in (3, 4, 13, 14)}
    assert texts["choices"][0]["logprobs"]["top_logprobs"] == [
        {letters[name]: logprob for name, logprob in one.items()} for one in (first, second)
    ]
    assert none["choices"][0]["logprobs"]["top_logprobs"] is None


async def test_what_lm_evaluation_harness_sends_is_answered_as_it_reads_it(tmp_path: Path) -> None:
    prompts = [[1, 4, 5, 6, 7], [1, 9]]
    async with telling_gateway(tmp_path) as (gateway, _):
        status, answer = await gateway.complete(prompt=prompts, **LM_EVAL)
        tokenizer = load_tokenizer(tmp_path / "model")
    assert status == 200
    for choice, ids in zip(answer["choices"], prompts, strict=True):
        lists = choice["logprobs"]
        assert {len(values) for values in lists.values()} == {len(ids) + 1}
        assert (lists["token_logprobs"][0], lists["top_logprobs"][0], lists["text_offset"][0]) == (None, None, 0)
        assert lists["token_logprobs"][1:-1] == own(ids[1:])
        greedy = [
            own == max(top.values())
            for own, top in zip(lists["token_logprobs"][1:-1], lists["top_logprobs"][1:-1], strict=True)
        ]
        assert greedy == [place % 2 == 0 for place in range(len(ids) - 1)]
        text = tokenizer.decode(np.array(ids))
        assert choice["text"] == text + tokenizer.decode(np.array([3]))
        assert lists["text_offset"][-1] == len(text)
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("prompt", ["1+1=", PROMPT])
async def test_an_echo_begins_with_the_prompt_whole_and_in_a_stream(prompt: Any, tmp_path: Path) -> None:
    body = {"model": "run", "prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 3, "n": 2}
    async with telling_gateway(tmp_path) as (gateway, _):
        _, plain = await gateway.complete(**{**body, "echo": False})
        _, whole = await gateway.complete(**body)
        *chunks, done = await streamed(gateway, "/v1/completions", body)
        tokenizer = load_tokenizer(tmp_path / "model")
    assert done == "[DONE]"
    ids = whole["streamrl"]["prompt_token_ids"][0]
    for choice, without in zip(whole["choices"], plain["choices"], strict=True):
        begins = tokenizer.decode(np.array(ids)) if isinstance(prompt, list) else prompt
        assert choice["text"] == begins + without["text"]
        lists, rest = choice["logprobs"], without["logprobs"]
        assert lists["tokens"] == [tokenizer.decode(np.array([token_id])) for token_id in ids] + rest["tokens"]
        assert lists["token_logprobs"] == [None, *own(ids[1:]), *rest["token_logprobs"]]
        assert lists["top_logprobs"][len(ids) :] == rest["top_logprobs"]
        for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
            assert choice["text"][offset:].startswith(token)
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        assert len(mine) > 1
        assert "".join(one["text"] for one in mine) == choice["text"]
        for name, values in lists.items():
            assert [value for one in mine for value in one["logprobs"][name]] == values, name
        assert choice["streamrl"] == without["streamrl"]
    assert whole["usage"] == plain["usage"]


async def test_an_echo_without_log_probs_asks_an_engine_for_nothing_more(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:  # its engine knows no log-probs of prompts
        _, plain = await gateway.complete(seed=1)
        status, answer = await gateway.complete(seed=1, echo=True)
    assert (status, answer["choices"][0]["logprobs"]) == (200, None)
    assert answer["choices"][0]["text"] == "1+1=" + plain["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
async def test_with_no_tokens_the_prompt_is_all_that_is_shown(stream: bool, tmp_path: Path) -> None:
    body = {"model": "run", "prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 0, "n": 2}
    async with telling_gateway(tmp_path) as (gateway, _):
        if stream:
            *chunks, usage, _ = await streamed(
                gateway, "/v1/completions", {**body, "stream_options": {"include_usage": True}}
            )
            choices = [one for chunk in chunks for one in chunk["choices"]]
        else:
            _, usage = await gateway.complete(**body)
            choices = usage["choices"]
        tokenizer = load_tokenizer(tmp_path / "model")
        assert gateway.actor._pool.running == 0
    assert usage["usage"] == {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4}
    assert sorted(choice["index"] for choice in choices) == [0, 1]
    for choice in choices:
        assert choice["text"] == tokenizer.decode(np.array(PROMPT))
        assert choice["logprobs"]["token_logprobs"] == [None, *own(PROMPT[1:])]
        assert choice["finish_reason"] == "length"
        assert choice["streamrl"] == {"token_ids": [], "logprobs": [], "version_spans": []}


async def test_log_probs_of_a_prompt_come_where_vllm_has_them(tmp_path: Path) -> None:
    params = {"prompt_logprobs": 2, "max_tokens": 2, "n": 2}
    async with telling_gateway(tmp_path) as (gateway, _):
        _, completion = await gateway.complete(prompt=[PROMPT, PROMPT[:2]], **params)
        _, chat = await gateway.chat(**params)
        _, ids = await gateway.ask("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": params})
        _, without = await gateway.complete(max_tokens=2)
        tokenizer = load_tokenizer(tmp_path / "model")
    lists = [choice["prompt_logprobs"] for choice in completion["choices"]]
    assert [len(one) for one in lists] == [4, 4, 2, 2]
    first, second, third, _ = lists[0]
    assert first is None
    letter = {token_id: tokenizer.decode(np.array([token_id])) for token_id in range(20)}
    assert second == {"4": {"logprob": -0.125, "rank": 1, "decoded_token": letter[4]}}
    assert list(third) == ["5", "14"]
    assert third["5"] == {"logprob": -0.25, "rank": None, "decoded_token": letter[5]}
    assert (third["14"]["rank"], third["14"]["decoded_token"]) == (1, letter[14])
    assert len(chat["prompt_logprobs"]) == len(chat["streamrl"]["prompt_token_ids"][0])
    assert "prompt_logprobs" not in chat["choices"][0]
    assert [
        one and {key: value | {"decoded_token": letter[int(key)]} for key, value in one.items()}
        for one in ids["prompt_logprobs"]
    ] == lists[0]
    assert ids["prompt_logprobs"][1]["4"]["decoded_token"] is None
    assert "prompt_logprobs" not in without["choices"][0]


async def test_a_chat_tells_others_whole_and_in_a_stream(tmp_path: Path) -> None:
    body = {"model": "run", "messages": [{"role": "user", "content": "1"}]}
    body |= {"logprobs": True, "top_logprobs": 3, "max_tokens": 3}
    async with telling_gateway(tmp_path) as (gateway, _):
        _, whole = await gateway.ask("/v1/chat/completions", body)
        *chunks, _ = await streamed(gateway, "/v1/chat/completions", body)
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0)
        async with client:
            answer = await client.chat.completions.create(**body)
    content = whole["choices"][0]["logprobs"]["content"]
    assert [len(one["top_logprobs"]) for one in content] == [2, 2, 2]
    for place, one in enumerate(content):
        best = one["top_logprobs"][0]
        assert (best["token"] == one["token"]) == (best["logprob"] == one["logprob"]) == (place % 2 == 0)
        assert best["bytes"] == list(best["token"].encode())
    assert [one for chunk in chunks for one in chunk["choices"][0]["logprobs"]["content"]] == content
    assert [one.model_dump() for one in answer.choices[0].logprobs.content] == content


async def test_a_response_tells_others_as_a_chat_does_whole_and_in_events(tmp_path: Path) -> None:
    body = {"model": "run", "input": "1", "max_output_tokens": 3, "top_logprobs": 3}
    chat = {"model": "run", "messages": [{"role": "user", "content": "1"}], "logprobs": True, "top_logprobs": 3}
    async with telling_gateway(tmp_path) as (gateway, _):
        _, expected = await gateway.ask("/v1/chat/completions", {**chat, "max_tokens": 3})
        _, whole = await gateway.ask("/v1/responses", body)
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0) as client:
            made = await client.responses.create(**body, include=["message.output_text.logprobs"], stream=True)
            last = [event async for event in made][-1].response
    content = expected["choices"][0]["logprobs"]["content"]
    assert whole["top_logprobs"] == 3
    assert whole["output"][0]["content"][0]["logprobs"] == content
    assert [one.model_dump() for one in last.output[0].content[0].logprobs] == content


async def test_ids_are_told_by_the_route_of_ids(tmp_path: Path) -> None:
    async with telling_gateway(tmp_path) as (gateway, _):
        body = {"token_ids": PROMPT, "sampling_params": {"logprobs": 2, "max_tokens": 2}}
        _, answer = await gateway.ask("/inference/v1/generate", body)
    first, second = answer["choices"][0]["logprobs"]["content"]
    assert first["top_logprobs"] == [{"token": "token_id:3", "logprob": -0.125, "bytes": None}]
    assert [one["token"] for one in second["top_logprobs"]] == ["token_id:14"]
    assert answer["prompt_logprobs"] is None


async def test_an_answer_that_moves_to_another_replica_has_all_that_was_asked_for(tmp_path: Path) -> None:
    body = {"model": "run", "prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 5}
    stuck = Telling(stuck=True)
    async with telling_gateway(tmp_path / "calm") as (gateway, _):
        _, calm = await gateway.complete(**body)
    async with telling_gateway(tmp_path / "dies", stuck, Telling()) as (gateway, handles):
        headers = {"authorization": f"Bearer {gateway.token()}"}
        async with gateway.http.post(
            f"{gateway.url}/v1/completions", json={**body, "stream": True}, headers=headers
        ) as response:
            stream = events(response)
            shown = [await anext(stream)]
            handles["rollout-0"].die()
            shown += [event async for event in stream]
    assert len(stuck.asked) == 1
    assert shown.pop() == "[DONE]"
    choices = [event["choices"][0] for event in shown]
    for name, values in calm["choices"][0]["logprobs"].items():
        assert [value for one in choices for value in one["logprobs"][name]] == values, name


@pytest.mark.parametrize("body", [{"echo": True, "logprobs": 0}, {"prompt_logprobs": 0}])
async def test_a_prompt_that_an_engine_cannot_score_is_a_refusal(body: dict[str, Any], tmp_path: Path) -> None:
    async with telling_gateway(tmp_path, Telling(broken=True)) as (gateway, _):
        status, answer = await gateway.complete(**body)
        assert (status, answer["error"]["code"]) == (503, "generation_failed")
        assert (await gateway.complete())[0] == 200


async def test_an_event_holds_fewer_tokens_where_others_are_told_with_each(tmp_path: Path) -> None:
    body = {"model": "run", "prompt": PROMPT, "logprobs": MOST_TOP_LOGPROBS, "max_tokens": MOST}
    async with telling_gateway(tmp_path) as (gateway, _):
        *chunks, _ = await streamed(gateway, "/v1/completions", body)
    counts = [len(chunk["choices"][0]["streamrl"]["token_ids"]) for chunk in chunks]
    assert sum(counts) == MOST
    assert max(counts) <= EVENT_TOKENS // (1 + MOST_TOP_LOGPROBS) < MOST
    assert max(len(json.dumps(chunk)) for chunk in chunks) < 2**16
