"""vLLM's answers, read: one piece of a streamed completion, its versions, its load. Pure.

Guarantees: what cannot be read is an error with the server's words, never a guess. vLLM writes -9999 for a log-prob
that is NaN or -inf; it is NaN again here.
"""

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from streamrl.engines.server.contract import Piece
from streamrl.errors import ComponentError, ConfigError
from streamrl.types import (
    FinishReason,
    FloatArray,
    IntArray,
    PromptLogprobs,
    RouteArray,
    ServerLoad,
    TopLogprobs,
    Version,
    VersionSpan,
)

KNOWN = (0, 32)
"""The minor release that the routes and the worker extension were made for and are tested with."""

NOT_A_NUMBER = -9999.0
_SERVERS_OWN = 500
"""From this status on the fault is the server's, below it is the request's."""

UNLABELLED = "default"
"""What a server calls the weights that it started with."""

STARTED_WITH = Version(-1, -1)
"""Our version of those: older than every published one."""

_LABEL = re.compile(r"(-?\d+)\.(-?\d+)")
_METRIC = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class _Other(msgspec.Struct):
    token_id: int
    logprob: float


class _LogProb(msgspec.Struct):
    logprob: float | None
    top_logprobs: list[_Other] = []


class _LogProbs(msgspec.Struct):
    content: list[_LogProb] | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None
    routed_experts: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None


class _Whole(msgspec.Struct):
    prompt_logprobs: list[dict[int, _LogProb] | None] | None = None


_DECODER = msgspec.json.Decoder(_Chunk)
_WHOLE = msgspec.json.Decoder(_Whole)


def asked_top(top: int) -> int:
    """What is asked for to know the `top` likeliest: an answer has the sampled token first, also where it is none of
    them, and so many tokens in all."""
    return top + 1 if top else 0


def read_prompt(data: bytes, prompt_ids: IntArray, top: int) -> PromptLogprobs:
    """The log-probs of a prompt, and the `top` likeliest tokens in its places, in an answer that is no stream. Raises
    ComponentError for one that does not have them."""
    try:
        rows = _WHOLE.decode(data).prompt_logprobs or []
        own = [row[token_id] for row, token_id in zip(rows[1:], prompt_ids[1:].tolist(), strict=True) if row]
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise ComponentError(f"log-probs of the prompt cannot be read ({error!r}): {data[:500]!r}") from error
    if len(own) != len(prompt_ids) - 1:
        raise ComponentError(f"{len(own)} log-probs came of a prompt of {len(prompt_ids)} tokens")
    logprobs = _finite([one.logprob for one in own])
    others = [[_Other(token_id, one.logprob or 0.0) for token_id, one in row.items()] for row in rows[1:] if row]
    return PromptLogprobs(logprobs, _top(others, top) if top else None)


def read_chunk(data: bytes, top: int = 0) -> Piece | None:
    """A piece of a streamed answer; None for one without a choice (usage). A refusal in the stream is an ERROR piece.
    top: so many of the likeliest tokens are told in the place of each.

    Raises ComponentError for what is no chunk, and when the server says that it failed itself: that its workers died
    comes this way, to every request, with the status 200.
    """
    try:
        chunk = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise ComponentError(f"a chunk of the answer cannot be read ({error}): {data[:500]!r}") from error
    if chunk.error is not None:
        told = chunk.error if isinstance(chunk.error, dict) else {"message": chunk.error}
        words, code = str(told.get("message") or chunk.error), told.get("code")
        if isinstance(code, int) and code >= _SERVERS_OWN:
            raise ComponentError(f"the answer breaks off with error {code}: {words}")
        return Piece.failed(words)
    return _piece(chunk.choices[0], top) if chunk.choices else None


def _finite(given: Sequence[float | None]) -> FloatArray:
    """float32, NaN for what is no log-prob."""
    logprobs = np.asarray([NOT_A_NUMBER if one is None else one for one in given], np.float32)
    logprobs[logprobs <= NOT_A_NUMBER] = np.nan
    return logprobs


def _top(given: Sequence[list[_Other]], top: int) -> TopLogprobs:
    """The `top` likeliest in each place, the likeliest first."""
    token_ids, logprobs = np.full((len(given), top), -1, np.int32), np.full((len(given), top), -np.inf, np.float32)
    for place, others in enumerate(given):
        likeliest = sorted((one for one in others if one.logprob > NOT_A_NUMBER), key=lambda one: -one.logprob)[:top]
        token_ids[place, : len(likeliest)] = [one.token_id for one in likeliest]
        logprobs[place, : len(likeliest)] = [one.logprob for one in likeliest]
    return TopLogprobs(token_ids, logprobs)


def _piece(choice: _Choice, top: int) -> Piece:
    ids = np.asarray(choice.token_ids or [], np.int32)
    given = (choice.logprobs.content if choice.logprobs is not None else None) or []
    if len(given) != len(ids):
        return Piece.failed(f"{len(ids)} tokens came with {len(given)} log-probs")
    logprobs = _finite([one.logprob for one in given])
    told = _top([one.top_logprobs for one in given], top) if top else None
    if choice.finish_reason is None:
        return Piece(ids, logprobs, top_logprobs=told)
    reason = _REASONS.get(choice.finish_reason)
    if reason is None:
        return Piece.failed(f"it ended for a reason that is not known here: {choice.finish_reason!r}")
    try:
        spans = read_spans(choice.weight_versions or [])
    except ComponentError as error:
        return Piece.failed(str(error))
    return Piece(ids, logprobs, reason, spans, top_logprobs=told, routes=_routes(choice.routed_experts))


def _routes(written: str | None) -> RouteArray | None:
    """Of a numpy file in base64. Raises ComponentError for what is none."""
    if written is None:
        return None
    try:
        found = np.load(io.BytesIO(base64.b64decode(written, validate=True)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ComponentError(f"routed_experts cannot be read ({error}): {written[:100]!r}") from error
    routes: RouteArray = found.astype(np.int16)
    return routes


def read_spans(given: Sequence[_Span]) -> tuple[VersionSpan, ...]:
    """The versions of a completion's tokens. Raises ComponentError for a label that is none of ours."""
    spans = []
    for one in given:
        version = read_version(one.version)
        if version is None:
            raise ComponentError(f"token {one.start} is of version {one.version!r}, which was not loaded by streamrl")
        if one.end > one.start:
            spans.append(VersionSpan(one.start, version))
    return tuple(spans)


def read_version(label: object) -> Version | None:
    """A label "incarnation.step", or the first one; None for any other."""
    if label == UNLABELLED:
        return STARTED_WITH
    found = _LABEL.fullmatch(label) if isinstance(label, str) else None
    return None if found is None else Version(int(found[1]), int(found[2]))


def read_load(metrics: str) -> ServerLoad:
    """What the Prometheus page says, summed over the server's engines. Raises ComponentError for a missing gauge."""
    sums: dict[str, float] = {}
    for name, value in _METRIC.findall(metrics):
        sums[name] = sums.get(name, 0.0) + float(value)
    try:
        return ServerLoad(
            running=int(sums["vllm:num_requests_running"]),
            waiting=int(sums["vllm:num_requests_waiting"]),
            kv_use=sums["vllm:kv_cache_usage_perc"],
        )
    except KeyError as error:
        raise ComponentError(f"GET /metrics has no {error.args[0]}") from error


def check_version(version: str) -> None:
    """Raises ConfigError for a release that is not spoken to."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) != KNOWN:
        spoken = ".".join(map(str, KNOWN))
        raise ConfigError(
            f"rollout.engine: this is vLLM {version!r}, and {spoken} is spoken here: its routes for weights and "
            f"versions change from one release to the next; install vllm=={spoken}.*"
        )
