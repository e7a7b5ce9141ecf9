"""What a client is told of the prompts that it submitted, one JSON object a line (NDJSON). Pure.

{"type": "accepted", "key": "q-17", "number": 3}                  durable: it will be generated, whatever is killed
{"type": "finished", "key": "q-17", "group": 41, "rollouts": [..]}    all its rollouts are there and scored
{"type": "dropped", "key": "q-17", "reason": "cancelled"}         it will not be trained
{"type": "error", "line": 4, "key": "q-18", "error": {..}}        that line was refused; the others go on
{"type": "end"}                                                   nothing follows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamrl.gateway.refusal import Refusal, json_bytes
from streamrl.types import Version

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout of a finished group. text: of the sampled tokens. ids, logprobs: from the first sampled token on.
    spans: (start, incarnation, step), `start` counted from there. reward: None where its score failed."""

    sample_index: int
    branch: int
    text: str
    ids: list[int]
    logprobs: list[float]
    spans: list[tuple[int, int, int]]
    finish_reason: str
    reward: float | None
    replica: str


def accepted(key: str, number: int) -> bytes:
    """number: the run's own name for the prompt, in the order of arrival."""
    return _line({"type": "accepted", "key": key, "number": number})


def finished(key: str, group: int, prompt_ids: Sequence[int], rollouts: Sequence[Rollout] | None) -> bytes:
    """rollouts: None where the run does not have its rows any more; that they were trained is certain."""
    told = None if rollouts is None else [_rollout(one) for one in rollouts]
    return _line(
        {"type": "finished", "key": key, "group": group, "prompt_token_ids": list(prompt_ids), "rollouts": told}
    )


def dropped(key: str, reason: str) -> bytes:
    return _line({"type": "dropped", "key": key, "reason": reason})


def refused(refusal: Refusal, line: int | None = None, key: str | None = None) -> bytes:
    """line: counted from 1, of the one that was refused; None where it is the whole stream that ends."""
    where = {} if line is None else {"line": line, "key": key}
    return _line({"type": "error", **where, **refusal.body()})


def end() -> bytes:
    return _line({"type": "end"})


def _rollout(one: Rollout) -> Json:
    spans = [[start, str(Version(incarnation, step))] for start, incarnation, step in one.spans]
    return {
        "sample_index": one.sample_index,
        "branch": one.branch,
        "text": one.text,
        "finish_reason": one.finish_reason,
        "reward": one.reward,
        "token_ids": one.ids,
        "logprobs": one.logprobs,
        "version_spans": spans,
        "replica": one.replica,
    }


def _line(value: Json) -> bytes:
    return json_bytes(value) + b"\n"
