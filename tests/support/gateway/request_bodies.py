"""Bodies as honest clients send them, for each route that takes one: what a mutation begins with."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
RAW: Mapping[str, str] = {
    "NaN": "NaN",
    "infinity": "-Infinity",
    "a number beyond floats": "1e999",
    "5,000 digits": "9" * 5000,
    "no number": "0x1F",
    "another quote": "'a'",
    "half an escape": '"\\u12',
    "a NUL": '"\0"',
    **{f"lists {deep} deep": "[" * deep + "]" * deep for deep in (90, 240, 700, 3000)},
    **{f"objects {deep} deep": '{"a":' * deep + "1" + "}" * deep for deep in (90, 240, 700, 3000)},
    "lists that do not end": "[" * 50_000,
}
"""JSON, and what is none, that no value of Python is written as."""


def _common(chance: random.Random) -> dict[str, Any]:
    more = {
        "n": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "max_tokens": 4,
        "seed": 3,
        "stop": ["=", "9"],
        "stop_token_ids": [3],
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "me",
        "metadata": {"a": "b"},
        "logit_bias": {},
    }
    return {"model": "run", **{name: more[name] for name in chance.sample(list(more), chance.randrange(5))}}


def _completion(chance: random.Random) -> bytes:
    prompt = chance.choice(["1+1=", [1, 4, 5], ["1", "2+"], [[1, 4], [5]]])
    return text_of(
        {
            **_common(chance),
            "prompt": prompt,
            "logprobs": chance.choice([None, 0, 1]),
            "echo": chance.choice([None, True]),
        }
    )


def _chat(chance: random.Random) -> bytes:
    contents = ["1", [{"type": "text", "text": "1"}]]
    messages = [{"role": "user", "content": chance.choice(contents)} for _ in range(chance.randrange(1, 3))]
    more = chance.choice([{}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}, {"logprobs": True}])
    if chance.random() < 0.2:
        messages.append({"role": "assistant", "content": chance.choice(contents)})
        more = {**more, "continue_final_message": True, "add_generation_prompt": False}
    return text_of({**_common(chance), "messages": messages, **more})


def _prompts(chance: random.Random) -> bytes:
    # Of few keys, so that they are few prompts however many requests there are.
    return b"\n".join(
        text_of({"key": f"k{chance.randrange(8)}", "prompt": "1+1=", "payload": {"answer": "2"}})
        for _ in range(chance.randrange(1, 4))
    )


def _cancel(chance: random.Random) -> bytes:
    return text_of({"stream": "clients", "keys": [f"k{chance.randrange(9)}"]})


def _scale(chance: random.Random) -> bytes:
    return text_of(chance.choice([{"rollout": 2}, {"reward": 1}, {"rollout": 1, "reward": 2}]))


def _trajectory(chance: random.Random) -> bytes:
    turn = {
        "prompt_token_ids": [1, 4, 5],
        "token_ids": [6, 7],
        "logprobs": [-0.5, -0.25],
        "version_spans": [[0, "0.0"]],
    }
    named = {"key": f"k{chance.randrange(8)}", "group": f"g{chance.randrange(3)}"}
    return text_of({**named, "reward": 0.5, "turns": [turn] * chance.randrange(1, 3)})


def _reward(chance: random.Random) -> bytes:
    return text_of({"reward": chance.choice([0, 0.5, 1]), **chance.choice([{}, {"group": "g"}])})


def _response(chance: random.Random) -> bytes:
    part = {"type": "input_text", "text": "1"}
    items = [
        {"role": "user", "content": chance.choice(["1", [part]])},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": chance.choice(["2", [part]])},
        {"type": "reasoning", "id": "r1", "summary": []},
    ]
    more = {
        "instructions": "1",
        "max_output_tokens": 4,
        "temperature": 0.7,
        "stream": True,
        "store": False,
        "previous_response_id": "resp_none",
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
        "tool_choice": chance.choice(["auto", "none", "required", {"type": "function", "name": "add"}]),
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
    }
    return text_of(
        {"model": "run", "input": chance.choice(["1", items[: chance.randrange(1, 5)]]), **_some(chance, more)}
    )


def _message(chance: random.Random) -> bytes:
    return text_of({**_counted(chance), "max_tokens": 4, **_some(chance, _OF_MESSAGES)})


_OF_MESSAGES: Mapping[str, Any] = {
    "stop_sequences": ["=", "9"],
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "stream": True,
    "metadata": {"user_id": "me"},
}


def _count(chance: random.Random) -> bytes:
    return text_of(_counted(chance))


def _counted(chance: random.Random) -> dict[str, Any]:
    said = [{"type": "thinking", "thinking": "1", "signature": ""}]
    said.append({"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}})
    turns = [
        {"role": "user", "content": chance.choice(["1", [{"type": "text", "text": "1"}]])},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
    ]
    more = {
        "system": chance.choice(["1", [{"type": "text", "text": "1"}]]),
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": chance.choice(["auto", "any", "none"])},
        "thinking": {"type": "disabled"},
    }
    return {"model": "run", "messages": turns[: chance.choice((1, 1, 2, 3))], **_some(chance, more)}


def _generate(chance: random.Random) -> bytes:
    given = {**_common(chance), "max_tokens": 4, "logprobs": 1}
    sampling = {
        name: given[name] for name in ("max_tokens", "n", "temperature", "top_p", "seed", "logprobs") if name in given
    }
    return text_of(
        {"token_ids": [1, 4, 5], "sampling_params": sampling, **_some(chance, {"model": "run", "stream": True})}
    )


def _tokenize(chance: random.Random) -> bytes:
    what = chance.choice([{"prompt": "1+1="}, {"messages": [{"role": "user", "content": "1"}]}])
    return text_of({**what, **_some(chance, {"model": "run", "add_special_tokens": False, "return_token_strs": True})})


def _detokenize(chance: random.Random) -> bytes:
    return text_of({"tokens": [1, 4, 5], **_some(chance, {"model": "run"})})


def _session(chance: random.Random) -> bytes:
    return text_of(_some(chance, {"session_id": f"s{chance.randrange(8)}"}))


def _some(chance: random.Random, more: Mapping[str, Any]) -> dict[str, Any]:
    """A few of them."""
    return {name: more[name] for name in chance.sample(list(more), chance.randrange(len(more) + 1))}


BODIES: Mapping[str, Callable[[random.Random], bytes]] = {
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/v1/responses": _response,
    "/v1/messages": _message,
    "/v1/messages/count_tokens": _count,
    "/inference/v1/generate": _generate,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
    "/api/sessions": _session,
    "/api/prompts": _prompts,
    "/api/prompts/cancel": _cancel,
    "/api/scale": _scale,
    "/api/trajectories": _trajectory,
    "/api/sessions/a1/reward": _reward,
}


def text_of(value: Any) -> bytes:
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(f'"<<{name}>>"', raw)
    return text.encode()
