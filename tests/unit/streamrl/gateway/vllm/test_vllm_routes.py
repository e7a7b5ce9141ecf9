"""vLLM's own routes: ids in and out as `/v1/completions` has them, texts to ids and back, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway.agent_sessions import gateway_of
from support.gateway.local_gateway import LocalGateway, local_gateway

IDS = [3, 14, 3, 16]


async def generated(gateway: LocalGateway, **body: Any) -> tuple[int, Any]:
    return await gateway.ask("/inference/v1/generate", {"token_ids": IDS, **body})


async def test_it_samples_what_a_completion_of_the_same_ids_samples(tmp_path: Path) -> None:
    sampling = {"max_tokens": 7, "seed": 5, "n": 2, "temperature": 1.0}
    async with local_gateway(tmp_path) as gateway:
        _, completion = await gateway.complete(prompt=IDS, **sampling)
        status, answer = await generated(gateway, sampling_params={**sampling, "logprobs": 1}, model="run")
    assert status == 200
    assert [choice["token_ids"] for choice in answer["choices"]] == [
        choice["streamrl"]["token_ids"] for choice in completion["choices"]
    ]
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        assert [one["token"] for one in content] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
        assert [one["logprob"] for one in content] == choice["streamrl"]["logprobs"]
        assert choice["finish_reason"] in ("stop", "length")
        assert choice["streamrl"]["version_spans"] == [[0, "0.1"]]
    assert answer["usage"]["prompt_tokens"] == len(IDS)
    assert answer["prompt_logprobs"] is None


async def test_what_the_client_of_that_route_sends_is_taken(tmp_path: Path) -> None:
    """As verifiers' train client does, by the package `renderers`."""
    params = {"stop_token_ids": [1, 2], "logprobs": 1, "skip_special_tokens": False, "temperature": 1.0}
    params |= {"max_tokens": None, "include_stop_str_in_output": True, "n": 1}
    more = {"cache_salt": "a", "priority": 0, "request_id": "mine"}
    async with local_gateway(tmp_path) as gateway:
        status, answer = await generated(gateway, model="run", sampling_params=params, **more)
    assert (status, answer["request_id"]) == (200, "mine")
    assert "token_ids" in answer["choices"][0]


async def test_without_a_bound_the_context_is_the_bound(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, most=24) as gateway:
        _, models = await gateway.ask("/v1/models")
        context = models["data"][0]["max_model_len"]
        status, _ = await generated(gateway)
        assert status == 200
        status, answer = await generated(gateway, token_ids=[3] * context)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_it_streams(tmp_path: Path) -> None:
    body = {"token_ids": IDS, "stream": True, "sampling_params": {"max_tokens": 6, "seed": 3}}
    async with local_gateway(tmp_path) as gateway:
        _, whole = await generated(gateway, sampling_params={"max_tokens": 6, "seed": 3})
        headers = {"authorization": f"Bearer {gateway.token()}"}
        async with gateway.http.post(gateway.url + "/inference/v1/generate", json=body, headers=headers) as response:
            lines = (await response.text()).split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    ids = [token_id for one in events for choice in one["choices"] for token_id in choice["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    assert events[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token_ids": []}, "invalid_value"),
        ({"token_ids": [10**6]}, "token_out_of_range"),
        ({"model": "another"}, "model_not_found"),
        ({"features": {"image": []}}, "invalid_value"),
        ({"what": 1}, "unknown_parameter"),
        ({"sampling_params": {"presence_penalty": 0.5}}, "unsupported_parameter"),
        ({"sampling_params": {"logprobs": 5}}, "unsupported_parameter"),
        ({"sampling_params": {"logprobs": 21}}, "invalid_value"),
        ({"sampling_params": {"prompt_logprobs": 0}}, "unsupported_parameter"),
        ({"sampling_params": {"max_tokens": 0}}, "invalid_value"),
        ({"sampling_params": {"min_tokens": 3}}, "unsupported_parameter"),
        ({"sampling_params": {"temprature": 3}}, "unknown_parameter"),
        ({"sampling_params": {"prompt": "1"}}, "unknown_parameter"),
        ({"sampling_params": {"model": "another"}}, "unknown_parameter"),
        ({"sampling_params": {"stream": True}}, "unknown_parameter"),
        ({"prompt": "1"}, "unknown_parameter"),
        ({"max_tokens": 3}, "unknown_parameter"),
    ],
)
async def test_what_is_wrong_is_said_with_a_code(change: dict[str, Any], code: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await generated(gateway, **change)
        assert status in (400, 404)
        assert answer["error"]["code"] == code
        assert (await generated(gateway, sampling_params={"max_tokens": 2}))[0] == 200


async def test_calls_of_a_session_by_ids_are_its_trajectory(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        headers = {"authorization": f"Bearer {gateway.token()}", "x-session-id": "agent-1"}
        body = {"token_ids": IDS, "sampling_params": {"max_tokens": 5, "logprobs": 1}}
        _, first = await gateway.ask("/inference/v1/generate", body, headers=headers)
        longer = [*IDS, *first["choices"][0]["token_ids"], 5]
        await gateway.ask("/inference/v1/generate", {**body, "token_ids": longer}, headers=headers)
        status, told = await gateway.ask("/api/sessions/agent-1/reward", {"reward": 1.0})
    assert status == 200, told
    assert (told["branches"], told["turns"]) == (1, 2)


# ---- texts and ids


async def test_texts_become_ids_and_back(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask("/tokenize", {"prompt": "1+1=", "return_token_strs": True})
        _, completion = await gateway.complete(prompt="1+1=", max_tokens=1)
        _, back = await gateway.ask("/detokenize", {"tokens": answer["tokens"]})
    assert status == 200
    assert [answer["tokens"]] == completion["streamrl"]["prompt_token_ids"]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] > 0
    assert back == {"prompt": "".join(answer["token_strs"])}
    assert back["prompt"].endswith("1+1=")


async def test_a_conversation_becomes_the_ids_of_its_chat(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "1"}]
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask("/tokenize", {"messages": messages, "model": "run"})
        _, chat = await gateway.chat(max_tokens=1)
    assert (status, [answer["tokens"]]) == (200, chat["streamrl"]["prompt_token_ids"])


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/tokenize", {}, "missing_parameter"),
        ("/tokenize", {"prompt": "1", "messages": [{"role": "user", "content": "1"}]}, "missing_parameter"),
        ("/tokenize", {"prompt": "hello"}, "not_encodable"),
        ("/tokenize", {"prompt": "1", "model": "x"}, "model_not_found"),
        ("/tokenize", {"prompt": "1", "continue_final_message": True}, "invalid_value"),
        ("/detokenize", {"tokens": [10**6]}, "token_out_of_range"),
        ("/detokenize", {"tokens": [-1]}, "invalid_value"),
    ],
)
async def test_texts_and_ids_that_are_none_are_refused(
    path: str, body: dict[str, Any], code: str, tmp_path: Path
) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask(path, body)
    assert status in (400, 404)
    assert answer["error"]["code"] == code


async def test_a_model_is_found_by_its_name(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        _, models = await gateway.ask("/v1/models")
        assert await gateway.ask("/v1/models/run") == (200, models["data"][0])
        status, answer = await gateway.ask("/v1/models/gpt-4")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_ids_are_told_where_vllm_tells_them(tmp_path: Path) -> None:
    asked = {"max_tokens": 4, "seed": 2, "return_token_ids": True}
    async with local_gateway(tmp_path) as gateway:
        _, completion = await gateway.complete(prompt=[IDS, IDS[:2]], **asked)
        _, chat = await gateway.chat(**asked, logprobs=True, return_tokens_as_token_ids=True)
        _, without = await gateway.chat(max_tokens=4, seed=2)
    assert [choice["prompt_token_ids"] for choice in completion["choices"]] == [IDS, IDS[:2]]
    for choice in (*completion["choices"], *chat["choices"]):
        assert choice["token_ids"] == choice["streamrl"]["token_ids"]
    assert [chat["prompt_token_ids"]] == chat["streamrl"]["prompt_token_ids"]
    tokens = [one["token"] for one in chat["choices"][0]["logprobs"]["content"]]
    assert tokens == [f"token_id:{token_id}" for token_id in chat["choices"][0]["token_ids"]]
    assert "prompt_token_ids" not in without
    assert "token_ids" not in without["choices"][0]


async def test_arguments_reach_the_chat_template(tmp_path: Path) -> None:
    template = (
        "{% if enable_thinking is defined %}{{ '1' if enable_thinking else '0' }}{% endif %}"
        "{% if reasoning_effort is defined %}{{ {'low': '2', 'high': '3'}[reasoning_effort] }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}="
    )
    async with local_gateway(tmp_path, template=template) as gateway:
        prompts = []
        for more in (
            {},
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
        ):
            _, answer = await gateway.chat("7", max_tokens=1, **more)
            _, text = await gateway.ask("/detokenize", {"tokens": answer["streamrl"]["prompt_token_ids"][0]})
            prompts.append(text["prompt"])
        status, answer = await gateway.chat("7", chat_template_kwargs={"self": 1})
        assert (status, answer["error"]["code"]) == (400, "template_refused")
        refused = {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}
        status, answer = await gateway.chat("7", **refused)
    assert prompts == ["7=", "17=", "037="]
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (
        400,
        "invalid_value",
        "chat_template_kwargs",
    )
