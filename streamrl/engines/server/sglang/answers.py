"""What an SGLang server answers, as our own records. Pure: bytes in, records out, no I/O.

Guarantees: a chunk becomes a Piece only when all of it adds up: every token has its own finite log-prob, every span
names a version, and together they cover the completion. Anything else is a DataError that says what was seen; nothing
is guessed or filled in. It reads what a server sends that was started with or without `--incremental-streaming-output`,
and does not know which.
"""

import base64
import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from streamrl.engines.server.contract import Piece
from streamrl.errors import ConfigError, DataError
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

OLDEST, NEWEST = (0, 5, 22), (0, 5, 23)
"""The releases whose answers are known. Spans came with 0.5.19; 0.5.22 made the routes strict about what they take."""

UNLABELLED = "default"
"""What a server calls the weights that it started with."""

STARTED_WITH = Version(-1, -1)
"""Our version of those weights: older than every published one."""

_NEVER = -3e38
"""Below it lies what it tells of a token that cannot be: the least number of float32."""
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Row = tuple[float | None, _TokenId, str | None]
_T = TypeVar("_T")

_LABEL = re.compile(r"(-?\d+)\.(-?\d+)")
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+\w[\w.]*)?")


class _Ending(msgspec.Struct, frozen=True):
    """Why a completion ended. matched: the token id that stopped it. status_code: there when the server refused."""

    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _Span(msgspec.Struct, frozen=True):
    version: str
    start: int
    end: int


class _Meta(msgspec.Struct, frozen=True):
    """completion_tokens: of the whole completion up to here, whatever part of it this chunk carries."""

    finish_reason: _Ending | None = None
    completion_tokens: int = 0
    output_token_logprobs: list[_Row] = []
    output_top_logprobs: list[list[_Row] | None] = []
    input_token_logprobs: list[_Row] = []
    input_top_logprobs: list[list[_Row] | None] = []
    weight_versions: list[_Span] | None = None
    routed_experts: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    output_ids: list[_TokenId] = []
    meta_info: _Meta | None = None
    error: object = None


class _Load(msgspec.Struct, frozen=True):
    num_running_reqs: int
    num_waiting_reqs: int
    token_usage: float


class _Loads(msgspec.Struct, frozen=True):
    loads: list[_Load]


class _ModelInfo(msgspec.Struct, frozen=True):
    weight_version: str


class _ServerInfo(msgspec.Struct, frozen=True):
    version: str
    disable_overlap_schedule: bool = False
    allow_auto_truncate: bool = False
    speculative_algorithm: str | None = None
    dp_size: int = 1


class _Outcome(msgspec.Struct, frozen=True):
    """What only an answer of the part that holds the weights has."""

    success: bool


_CHUNKS = msgspec.json.Decoder(_Chunk)
_OUTCOMES = msgspec.json.Decoder(_Outcome)
_MODEL_INFOS = msgspec.json.Decoder(_ModelInfo)
_SERVER_INFOS = msgspec.json.Decoder(_ServerInfo)
_LOADS = msgspec.json.Decoder(_Loads)


class ChunkReader:
    """Turns the chunks of one completion, in their order, into pieces.

    Example:
        reader = ChunkReader(max_new_tokens)
        for data in chunks:
            piece = reader.read(data)
    """

    def __init__(
        self,
        max_new_tokens: int,
        top: int = 0,
        prompt_ids: IntArray | None = None,
        routes: tuple[int, int] | None = None,
    ) -> None:
        """top: so many of the likeliest tokens are told in the place of each. prompt_ids: of a prompt whose log-probs
        are told. routes: layers and experts of a token, where these are told."""
        self._max_new_tokens = max_new_tokens
        self._top = top
        self._prompt_ids = prompt_ids
        self._route_size = routes
        self._seen = 0

    def read(self, data: bytes | str) -> Piece:
        """What a chunk adds. A refusal inside the stream is an ERROR piece. Raises DataError for a chunk that does not
        add up."""
        chunk = _decoded(_CHUNKS, data)
        if chunk.error is not None:
            return Piece.failed(_text(chunk.error))
        if chunk.meta_info is None:
            raise DataError(f"a chunk without `meta_info`: {_shown(data)}")
        meta = chunk.meta_info
        prompt, top = self._prompt(meta), self._fresh_top(meta)
        ids, logprobs = self._fresh(chunk.output_ids, meta)
        self._seen = meta.completion_tokens
        if meta.finish_reason is None:
            return Piece(ids, logprobs, top_logprobs=top, prompt=prompt)
        reason, error = _finish(meta.finish_reason, chunk.output_ids)
        if reason is FinishReason.LENGTH and self._seen < self._max_new_tokens:
            # The server takes a longer request than it has room for, and shortens it without a word.
            raise DataError(
                f"cut off after {self._seen} of {self._max_new_tokens} tokens: its context or cache is full"
            )
        spans = () if reason is FinishReason.ERROR else _spans(meta.weight_versions, meta.completion_tokens)
        return Piece(ids, logprobs, reason, spans, error, top, prompt, self._routes(meta.routed_experts))

    def _routes(self, written: str | None) -> RouteArray | None:
        """Of int32 numbers in base64, one row of layers and experts after the other."""
        if written is None or self._route_size is None:
            return None
        layers, experts = self._route_size
        try:
            return (
                np.frombuffer(base64.b64decode(written, validate=True), "<i4")
                .astype(np.int16)
                .reshape(-1, layers, experts)
            )
        except ValueError as error:
            told = f"{layers} layers and {experts} experts of each token: {_shown(written)}"
            raise DataError(f"routed_experts ({error}) are not of {told}") from error

    def _prompt(self, meta: _Meta) -> PromptLogprobs | None:
        """Told once: the first chunk has it."""
        wanted, self._prompt_ids = self._prompt_ids, None
        if wanted is None:
            return None
        ids = wanted[1:].tolist()
        rows = meta.input_token_logprobs[1 : len(wanted)]
        # It calls the last token of the vocabulary 0 here; the log-prob is that of the token.
        if len(rows) != len(ids) or any(row[1] not in (one, 0) for row, one in zip(rows, ids, strict=True)):
            told = [row[1] for row in rows]
            raise DataError(f"a chunk has log-probs of the prompt's tokens {told}, which was {ids}")
        logprobs = np.array([math.nan if row[0] is None else row[0] for row in rows], np.float32)
        return PromptLogprobs(logprobs, self._likeliest(meta.input_top_logprobs[1 : len(wanted)], len(ids)))

    def _fresh_top(self, meta: _Meta) -> TopLogprobs | None:
        """In the places of the tokens that no earlier chunk had."""
        count, rows = meta.completion_tokens - self._seen, meta.output_top_logprobs
        start = self._seen if len(rows) == meta.completion_tokens else 0
        return self._likeliest(rows[start : start + max(0, count)], max(0, count))

    def _likeliest(self, rows: Sequence[Sequence[_Row] | None], count: int) -> TopLogprobs | None:
        if not self._top:
            return None
        if len(rows) != count:
            raise DataError(f"the likeliest tokens of {len(rows)} places came for {count} tokens")
        ids, logprobs = np.full((count, self._top), -1, np.int32), np.full((count, self._top), -np.inf, np.float32)
        for place, row in enumerate(rows):
            told = [(one, token_id) for one, token_id, _ in row or () if one is not None and one > _NEVER][: self._top]
            ids[place, : len(told)] = [token_id for _, token_id in told]
            logprobs[place, : len(told)] = [logprob for logprob, _ in told]
        return TopLogprobs(ids, logprobs)

    def _fresh(self, output_ids: Sequence[int], meta: _Meta) -> tuple[IntArray, FloatArray]:
        """The tokens that no earlier chunk had: ids int32 [n], log-probs float32 [n].

        A chunk carries either all tokens so far, or only new ones; and an abort from the queue then repeats the last
        one. So the server's count decides, not the length of a list.
        """
        total, rows = meta.completion_tokens, meta.output_token_logprobs
        count = total - self._seen
        start = self._seen if len(output_ids) == len(rows) == total else 0
        ids, fresh = list(output_ids[start : start + count]), rows[start : start + count]
        if count < 0 or len(ids) != count or [row[1] for row in fresh] != ids:
            raise DataError(
                f"a chunk that takes the completion from {self._seen} to {total} tokens has the ids {ids[:8]}, and "
                f"log-probs of the ids {[row[1] for row in fresh[:8]]}"
            )
        logprobs = np.array([math.nan if row[0] is None else row[0] for row in fresh], np.float32)
        if not np.isfinite(logprobs).all():
            broken = int(np.flatnonzero(~np.isfinite(logprobs))[0])
            raise DataError(f"the log-prob of token {self._seen + broken} is {fresh[broken][0]}, which is not a number")
        return np.array(ids, np.int32), logprobs


def was_tried(body: bytes) -> bool:
    """Whether an error answer to a verb on weights comes from the part that holds them, which may have changed some.

    Errors from before that have other shapes: `{"error": {"message"}}`, `{"error": "text"}`, `{"object": "error"}`.
    """
    try:
        _OUTCOMES.decode(body)
    except msgspec.DecodeError:
        return False
    return True


def read_version(body: bytes) -> Version | None:
    """The version in an answer of `/model_info`; None for the weights that the server started with, and for a label
    that is not ours."""
    version = _version(_decoded(_MODEL_INFOS, body).weight_version)
    return None if version == STARTED_WITH else version


def read_load(body: bytes) -> ServerLoad:
    """The answer of `/v1/loads`, over all data-parallel ranks."""
    loads = _decoded(_LOADS, body).loads
    if not loads:
        raise DataError(f"`/v1/loads` names no rank: {_shown(body)}")
    return ServerLoad(
        running=sum(load.num_running_reqs for load in loads),
        waiting=sum(load.num_waiting_reqs for load in loads),
        kv_use=max(load.token_usage for load in loads),
    )


def check_server(body: bytes) -> str:
    """The release in an answer of `/server_info`.

    Raises ConfigError for a release that is not spoken here, and for a way of running that breaks a promise.
    """
    info = _decoded(_SERVER_INFOS, body)
    match = _RELEASE.fullmatch(info.version)
    if match is None or not OLDEST <= tuple(map(int, match.groups())) <= NEWEST:
        spoken = f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
        raise ConfigError(
            f"sglang: the server is release {info.version!r}; install one of {spoken}, which are known here"
        )
    for remedy in _remedies(info):
        raise ConfigError(f"sglang: the server cannot serve a run as it was started: {remedy}")
    return info.version


def _remedies(info: _ServerInfo) -> Iterator[str]:
    if not info.disable_overlap_schedule:
        yield "add --disable-overlap-schedule, or a token is labelled with the version that came right after it"
    if info.allow_auto_truncate:
        yield "drop --allow-auto-truncate, which shortens prompts and says nothing"
    if info.speculative_algorithm is not None:
        yield f"drop --speculative-algorithm {info.speculative_algorithm}, whose log-probs nobody has checked"
    if info.dp_size != 1:
        yield f"give --dp-size 1 in place of {info.dp_size}: the version of each rank is not known"


def _finish(ending: _Ending, output_ids: Sequence[int]) -> tuple[FinishReason, str]:
    if ending.type == "length":
        return FinishReason.LENGTH, ""
    if ending.type == "abort":
        # With a status it is a refusal that found its way into the stream.
        refused = ending.status_code is not None
        return (FinishReason.ERROR, ending.message or "refused") if refused else (FinishReason.ABORT, "")
    if ending.type != "stop":
        raise DataError(f"the completion ended for the unknown reason {ending.type!r}")
    # A text stands here for numbers that are not finite ("NaN happened"), and the last token is made up then.
    if not isinstance(ending.matched, int):
        return FinishReason.ERROR, f"stopped by {ending.matched!r}, which is no token"
    if not output_ids or output_ids[-1] != ending.matched:
        raise DataError(f"stopped by token {ending.matched}, but the last ids are {list(output_ids[-4:])}")
    return FinishReason.STOP, ""


def _spans(spans: Sequence[_Span] | None, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Ours, of neighbours with different versions. They must cover 0 to `num_tokens`, and versions never go back."""
    if num_tokens == 0:
        return ()
    if not spans:
        raise DataError(f"no `weight_versions` for {num_tokens} tokens: which version sampled them is not known")
    ours: list[VersionSpan] = []
    end = 0
    for span in spans:
        version = _version(span.version)
        if version is None or span.start != end or span.end < end or (ours and version < ours[-1].version):
            break
        if span.end > end and (not ours or version != ours[-1].version):
            ours.append(VersionSpan(end, version))
        end = span.end
    else:
        if end == num_tokens:
            return tuple(ours)
    told = ", ".join(f"{span.version!r} {span.start} to {span.end}" for span in spans)
    raise DataError(f"`weight_versions` ({told}) do not say which of our versions sampled each of {num_tokens} tokens")


def _version(label: str) -> Version | None:
    if label == UNLABELLED:
        return STARTED_WITH
    match = _LABEL.fullmatch(label)
    return Version(int(match[1]), int(match[2])) if match else None


def _decoded(decoder: "msgspec.json.Decoder[_T]", data: bytes | str) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise DataError(f"{error}: {_shown(data)}") from error


def _text(words: object) -> str:
    if isinstance(words, dict) and "message" in words:
        return str(words["message"])
    return str(words)


def _shown(data: bytes | str) -> str:
    text = data if isinstance(data, str) else data.decode(errors="replace")
    return text if len(text) <= 300 else f"{text[:300]}..."


def _dotted(release: tuple[int, int, int]) -> str:
    return ".".join(map(str, release))
