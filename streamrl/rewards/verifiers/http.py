"""A reward server of one's own, by HTTP.

A batch is posted as `{"items": [{"prompt": ..., "completion": ..., ...columns}]}`; the answer is `{"scores": [...]}`,
in order: numbers, objects as a reward function returns them, or null for no say.
"""

import os
from typing import Any

from streamrl.rewards.verifiers.endpoint import Endpoint


async def http(
    completions: list[Any],
    prompts: list[Any],
    completion_ids: list[list[int]],
    *,
    url: str,
    retries: int = 4,
    timeout_s: float = 30.0,
    api_key_env: str = "",
    **columns: Any,
) -> list[Any]:
    """What the server gives for each completion. Raises EndpointError where it does not answer, ValueError for an
    answer of another form."""
    key = os.environ.get(api_key_env) if api_key_env else None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    items = [
        {"prompt": prompt, "completion": completion, **{name: values[place] for name, values in columns.items()}}
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    async with Endpoint(url, headers, concurrency=1, retries=retries, timeout_s=timeout_s) as endpoint:
        answer = await endpoint.post({"items": items})
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list) or len(scores) != len(items):
        raise ValueError(f'{url} answered {str(answer)[:100]}, not {{"scores": [...]}} with {len(items)} entries')
    return scores
