"""What clients get from the gateway: OpenAI's answers, with ids, log-probs and versions beside the text."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gateway.local_gateway import ENDLESS, LocalGateway, events, local_gateway, until

from streamrl.models.tokenizer import load_tokenizer


async def streamed(gateway: LocalGateway, path: str, body: dict[str, Any]) -> list[Any]:
    headers = {"authorization": f"Bearer {gateway.token()}"}
    async with gateway.http.post(gateway.url + path, json={"stream": True, **body}, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return [event async for event in events(response)]


def captured(choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    return choice["streamrl"]["token_ids"], choice["streamrl"]["logprobs"]


async def test_a_completion_carries_what_was_sampled_and_its_text_is_the_text_of_its_ids(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.complete(n=3, seed=5, logprobs=0, max_tokens=8)
        tokenizer = load_tokenizer(tmp_path / "model")
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice in answer["choices"]:
        ids, logprobs = captured(choice)
        assert choice["text"] == tokenizer.decode(np.array(ids, np.int32))
        assert choice["logprobs"]["token_logprobs"] == logprobs
        assert len(ids) == len(logprobs) == len(choice["logprobs"]["tokens"]) > 0
        assert all(logprob < 0 for logprob in logprobs)
        assert choice["streamrl"]["version_spans"] == [[0, "0.1"]]
        assert choice["finish_reason"] == ("stop" if ids[-1] in tokenizer.eos_token_ids else "length")
    assert len({json.dumps(captured(choice)) for choice in answer["choices"]}) == 3
    assert answer["streamrl"]["prompt_token_ids"] == [tokenizer.encode("1+1=").tolist()]
    total = sum(len(captured(choice)[0]) for choice in answer["choices"])
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": total, "total_tokens": 5 + total}


async def test_a_seed_draws_the_same_again_and_another_one_or_none_something_else(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, latency_steps=12) as gateway:
        asked = [{"seed": 1}, {"seed": 1}, {"seed": 2}, {}, {}, {"seed": -1}]
        answers = [(await gateway.complete(**one))[1] for one in asked]
    first, again, other, free, freer, negative = (captured(one["choices"][0]) for one in answers)
    assert first == again
    assert len({json.dumps(one) for one in (first, other, free, freer, negative)}) == 5


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_says_piece_by_piece_what_the_whole_answer_says(path: str, tmp_path: Path) -> None:
    body = {"model": "run", "seed": 7, "n": 2, "max_tokens": 12}
    prompt = {"prompt": "1+1="} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "1"}]}
    async with local_gateway(tmp_path, latency_steps=12) as gateway:
        _, whole = await gateway.ask(path, {**body, **prompt})
        chunks = await streamed(gateway, path, {**body, **prompt, "stream_options": {"include_usage": True}})
    *parts, usage, done = chunks
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert parts[0]["streamrl"] == whole["streamrl"]
    assert {part["object"] for part in parts} == {whole["object"] + ".chunk" * (whole["object"] != "text_completion")}
    for choice in whole["choices"]:
        mine = [one for part in parts for one in part["choices"] if one["index"] == choice["index"]]
        text = "".join(one["text"] if "text" in one else one["delta"]["content"] for one in mine)
        assert text == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert [one for piece in mine for one in captured(piece)[0]] == captured(choice)[0]
        assert [one for piece in mine for one in captured(piece)[1]] == captured(choice)[1]
        assert [one["finish_reason"] for one in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_counts_in_each_chunk_where_it_is_asked_to(path: str, tmp_path: Path) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    prompt = {"prompt": "1"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "1"}]}
    body = {"model": "run", "max_tokens": 12.0, "n": 2, **prompt, "stream_options": options}
    async with local_gateway(tmp_path) as gateway:
        chunks = [chunk for chunk in await streamed(gateway, path, body) if isinstance(chunk, dict)]
    counted, told = dict[int, int](), list[int]()
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        counted[choice["index"]] = counted.get(choice["index"], 0) + len(choice["streamrl"]["token_ids"])
        told.append(chunk["usage"]["completion_tokens"])
        assert told[-1] == sum(counted.values())
    assert chunks[-1]["usage"]["completion_tokens"] == told[-1]
    assert len(set(told)) > 1
    assert max(counted.values()) <= 12


@pytest.mark.parametrize("number", [6.5, True, "6", -1, 0.0])
async def test_a_limit_that_is_no_whole_number_is_refused(number: Any, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask(
            "/v1/chat/completions",
            {"model": "run", "messages": [{"role": "user", "content": "1"}], "max_tokens": number},
        )
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


async def test_tokens_come_while_the_rest_is_sampled_and_say_which_version_sampled_them(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, **ENDLESS) as gateway:
        headers = {"authorization": f"Bearer {gateway.token()}"}
        body = {"model": "run", "prompt": "1", "max_tokens": 10**5, "stream": True}
        spans, position = [], 0
        async with gateway.http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as response:
            async for event in events(response):
                choice = event["choices"][0]
                assert choice["streamrl"]["version_spans"][0][0] == position
                position += len(captured(choice)[0])
                spans += choice["streamrl"]["version_spans"]
                if len(spans) == 1:
                    await gateway.take_up(2)
                if spans[-1][1] == "0.2":
                    break
        await gateway.idle()
    assert [version for _, version in spans] == ["0.1"] * (len(spans) - 1) + ["0.2"]


async def test_a_stop_string_ends_the_text_before_it_and_the_ids_with_it(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, latency_steps=24) as gateway:
        _, free = await gateway.complete(seed=3, max_tokens=24)
        text = free["choices"][0]["text"]
        stop = text[3:5]
        at = text.index(stop)
        _, cut = await gateway.complete(seed=3, max_tokens=24, stop=[stop, "never"])
        await gateway.idle()
    ids = captured(free["choices"][0])[0]
    choice = cut["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text[:at], "stop")
    assert captured(choice)[0] == ids[: at + 2]  # a token has one letter here
    assert cut["usage"]["completion_tokens"] == at + 2


async def test_prompts_may_be_ids_and_several_at_once(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.complete(prompt=[[1, 4, 5], [1, 6]], n=2, seed=1)
        _, alone = await gateway.complete(prompt=[1, 4, 5], n=1, seed=1)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["streamrl"]["prompt_token_ids"] == [[1, 4, 5], [1, 6]]
    assert answer["usage"]["prompt_tokens"] == 5
    assert captured(alone["choices"][0]) == captured(answer["choices"][0])


async def test_a_client_that_goes_away_frees_its_slots(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, **ENDLESS, slots=4) as gateway:
        headers = {"authorization": f"Bearer {gateway.token()}"}
        for stream in (True, False):
            body = {"model": "run", "prompt": "1", "max_tokens": 10**5, "n": 4, "stream": stream}
            asking = asyncio.create_task(gateway.http.post(f"{gateway.url}/v1/completions", json=body, headers=headers))
            await gateway.busy()
            if stream:
                (await asking).close()
            else:
                asking.cancel()
            await gateway.idle()
        assert gateway.actor._pool.running == 0
        assert gateway.actor._pool._routes.owed == {"rollout-0": 0}


async def test_requests_go_to_the_replica_that_owes_least_and_equal_prompts_stay_together(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, replicas=2, **ENDLESS) as gateway:
        tasks = []
        for count in (3, 1, 1):
            tasks.append(asyncio.create_task(gateway.complete(prompt="1", max_tokens=10**5, n=count)))
            await until(lambda: gateway.actor._pool.running == sum((3, 1, 1)[: len(tasks)]))
        by_replica = [
            sum(one.channel == name for one in gateway.actor._pool._asked.values()) for name in gateway.replicas
        ]
        for task in tasks:
            task.cancel()
        await gateway.idle()
    assert by_replica == [3, 2]


SLOW = {"most": 120, "latency_steps": 100, "step_s": 0.005}
"""Answers of 100 tokens that take half a second."""


async def test_what_a_dead_replica_owed_another_goes_on_with_behind_what_was_shown(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, replicas=2, **SLOW) as gateway:
        _, calm = await gateway.complete(prompt="1", max_tokens=120, seed=1)
        headers = {"authorization": f"Bearer {gateway.token()}"}
        body = {"model": "run", "prompt": "1", "max_tokens": 120, "seed": 1, "stream": True}
        async with gateway.http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as response:
            stream = events(response)
            shown = [await anext(stream)]
            (asked,) = gateway.actor._pool._asked.values()
            gateway.handles[asked.channel].die()
            shown += [event async for event in stream]
    assert shown.pop() == "[DONE]"
    choices = [event["choices"][0] for event in shown]
    assert len(choices) > 1
    told = ("token_ids", "logprobs")
    for key in told:
        assert [one for choice in choices for one in choice["streamrl"][key]] == calm["choices"][0]["streamrl"][key], (
            key
        )
    assert "".join(choice["text"] for choice in choices) == calm["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == "stop"


async def test_with_no_replica_left_what_was_shown_waits_for_one(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, replicas=2, **ENDLESS) as gateway:
        headers = {"authorization": f"Bearer {gateway.token()}"}
        body = {"model": "run", "prompt": "1", "max_tokens": 10**5, "stream": True}
        async with gateway.http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as response:
            await anext(events(response))
            for handle in gateway.handles.values():
                handle.die()
            await until(lambda: not gateway.actor._pool.ready)
            assert len(gateway.actor._pool._homeless) == 1
            status, answer = await gateway.complete()
            assert (status, answer["error"]["code"]) == (503, "no_replica")
            assert [(await gateway.ask(path, headers={}))[0] for path in ("/readyz", "/health")] == [503, 503]
        await until(lambda: not gateway.actor._pool.running)
        assert gateway.actor._pool._homeless == {}


async def test_a_request_under_way_moves_to_another_replica(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, replicas=2, **ENDLESS) as gateway:
        asking = asyncio.create_task(gateway.complete(prompt="1", max_tokens=10**5, seed=1, stop="=?"))
        await gateway.busy()
        gateway.handles["rollout-0"].die()
        status, answer = await asking
    assert status == 200
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "=?" not in choice["text"]
    assert len(captured(choice)[0]) == len(captured(choice)[1]) == answer["usage"]["completion_tokens"]
    assert choice["streamrl"]["version_spans"] == [[0, "0.1"]]


async def test_a_completion_that_the_engine_breaks_is_a_refusal_and_no_answer(tmp_path: Path) -> None:
    for fault in ({"error_rate": 1.0}, {"nan_rate": 1.0}):
        async with local_gateway(tmp_path / next(iter(fault)), **fault) as gateway:
            status, answer = await gateway.complete()
            assert (status, answer["error"]["code"]) == (503, "generation_failed")
            assert (await gateway.ask("/healthz"))[0] == 200


async def test_models_names_the_one_model_its_context_and_the_versions_that_serve(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, replicas=2) as gateway:
        await gateway.complete()
        await gateway.take_up(4)
        await gateway.complete(n=2)
        await gateway.complete(n=2)
        status, answer = await gateway.ask("/v1/models")
    assert status == 200
    (model,) = answer["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("run", "model", 64)
    assert "0.4" in model["streamrl"]["versions"]
