"""A language model as the judge, by any OpenAI-compatible endpoint.

It is asked for a JSON object `{"score": 0 to 1, "reason": "..."}`. What it took is counted: `judge_tokens`, and with
prices `judge_cost`. A judge that cannot be reached, or that says something else, gives no score, never a 0.
"""

import asyncio
import json
import os
import re
from typing import Any

from streamrl.rewards.verifiers.endpoint import Endpoint, EndpointError

RUBRIC = (
    "You grade an answer. Compare it with the reference where there is one. Reply with a JSON object alone: "
    '{"score": a number from 0 (wrong) to 1 (right), "reason": one sentence}.'
)
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "schema": {
            "type": "object",
            "properties": {"score": {"type": "number"}, "reason": {"type": "string"}},
            "required": ["score", "reason"],
            "additionalProperties": False,
        },
    },
}
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


async def judge(
    completions: list[str],
    prompts: list[Any],
    answer: list[Any] | None = None,
    *,
    base_url: str,
    model: str,
    api_key_env: str = "OPENAI_API_KEY",
    rubric: str = RUBRIC,
    max_score: float = 1.0,
    concurrency: int = 16,
    retries: int = 4,
    timeout_s: float = 60.0,
    structured: bool = True,
    max_tokens: int = 512,
    price_in: float = 0.0,
    price_out: float = 0.0,
) -> list[dict[str, Any] | Exception]:
    """The verdict on each completion: `score` divided by `max_score`, with what it cost; or why there is none.

    base_url: `http://host/v1`. api_key_env: name of the environment variable with the key. structured: ask for the
    verdict by `response_format`. price_in, price_out: for a million tokens."""
    answers = answer if answer is not None else [None] * len(completions)
    key = os.environ.get(api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{base_url.rstrip('/')}/chat/completions"
    extra = {"response_format": SCHEMA} if structured else {}

    async with Endpoint(url, headers, concurrency=concurrency, retries=retries, timeout_s=timeout_s) as endpoint:

        async def one(prompt: Any, completion: Any, reference: Any) -> dict[str, Any] | Exception:
            messages = [
                {"role": "system", "content": rubric},
                {"role": "user", "content": _question(prompt, completion, reference)},
            ]
            body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens, **extra}
            try:
                reply = await endpoint.post(body)
                return {**_verdict(reply, max_score), **_cost(reply, price_in, price_out)}
            except (EndpointError, ValueError) as error:
                return error

        return await asyncio.gather(*map(one, prompts, completions, answers))


def _question(prompt: Any, completion: Any, reference: Any) -> str:
    parts = [f"Question:\n{_text(prompt)}", f"Answer to grade:\n{_text(completion)}"]
    if reference is not None:
        parts.insert(1, f"Reference:\n{reference}")
    return "\n\n".join(parts)


def _text(value: Any) -> str:
    """A text, or a conversation turn by turn."""
    if isinstance(value, str):
        return value
    return "\n".join(f"{one.get('role')}: {one.get('content')}" for one in value)


def _verdict(reply: Any, max_score: float) -> dict[str, Any]:
    try:
        text = reply["choices"][0]["message"]["content"]
        found = _OBJECT.search(text)
        verdict: Any = json.loads(found.group(0)) if found else None
        score = float(verdict["score"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"the judge gave no verdict: {str(reply)[:200]}") from error
    if not 0.0 <= score <= max_score:
        raise ValueError(f"the judge gave {score:g}, not a number from 0 to max_score = {max_score:g}")
    return {"score": score / max_score, "reason": str(verdict.get("reason", ""))}


def _cost(reply: Any, price_in: float, price_out: float) -> dict[str, float]:
    usage = reply.get("usage") or {}
    read, written = float(usage.get("prompt_tokens") or 0), float(usage.get("completion_tokens") or 0)
    cost = (read * price_in + written * price_out) / 1e6
    return {"judge_tokens": read + written, **({"judge_cost": cost} if price_in or price_out else {})}
