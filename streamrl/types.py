"""The records that the parts of streamrl exchange inside a process.

What goes to disk is Arrow (`streamrl.buffers.rows.schema`); what goes between actors is built from the structs here.
All are plain data: no torch, no Arrow, no Ray. Arrays are numpy, ragged lists are a flat array plus offsets.

Shape suffixes: `_N` rows, `_T` tokens of all rows together.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

# Tasks of users import it from here.
from streamrl.ids import prompt_digest as prompt_digest
from streamrl.logit_changes import Adjustments as Adjustments
from streamrl.logit_changes import Grammar as Grammar
from streamrl.logit_changes import GrammarKind as GrammarKind

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
RouteArray = npt.NDArray[np.int16]
"""Experts by token, layer with experts, and choice of the token; -1 where nobody recorded one."""


class TokenOrigin(IntEnum):
    """Where a token came from. The loss mask is `origin == SAMPLED`, never a token value."""

    PROMPT = 0
    SAMPLED = 1
    ENVIRONMENT = 2


class FinishReason(StrEnum):
    """Why a rollout ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class UpdateMode(StrEnum):
    """What a replica does with requests in flight when a new version arrives.

    keep: swap the weights, keep the KV cache of the old version.
    recompute: swap the weights, rebuild the KV cache of every running request under the new ones.
    drain: finish what runs under the old version first, start nothing new meanwhile.
    """

    KEEP = "keep"
    RECOMPUTE = "recompute"
    DRAIN = "drain"


class Version(NamedTuple):
    """The number of a published weight set, ordered lexicographically.

    Step 0 is the initial model; training step s makes step s. A resume raises the incarnation, so a version published
    after it is newer than every version of the lost branch.

    Example:
        >>> str(Version(incarnation=0, step=7))
        '0.7'
        >>> Version(1, 3) > Version(0, 7)
        True
    """

    incarnation: int
    step: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.step}"


class VersionSpan(NamedTuple):
    """`version` sampled the tokens from index `start` on, up to the next span's start."""

    start: int
    version: Version


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. `temperature = 0` is greedy; 1.0 / 0 / 0.0 switch top-p / top-k / min-p off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 16


class EvalSampling(msgspec.Struct, frozen=True):
    """How often held-out prompts are completed, and at which temperature; 0 is greedy."""

    samples: int = 1
    temperature: float = 0.0


MOST_TOP_LOGPROBS = 20
"""Tokens that are told in the place of each, at most."""


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """In the place of each of n tokens the k likeliest ones, the likeliest first: token_ids int32 [n, k], logprobs
    float32 [n, k]. Where there are fewer than k, or it is not known any more: id -1, log-prob -inf."""

    token_ids: IntArray
    logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of a prompt of p tokens, under the version that read it. logprobs: float32 [p - 1], of its second token on, each
    given all before it, of the model's own distribution (temperature 1, nothing cut off). top_logprobs: of the same
    places and distribution, p - 1 of them; None where none were asked for."""

    logprobs: FloatArray
    top_logprobs: TopLogprobs | None = None


@dataclass(frozen=True, slots=True)
class PartialTokens:
    """Tokens sampled for a completion that has not ended: a piece of them, from its token `start` on.

    token_ids int32 [n], logprobs float32 [n], n >= 1. version_spans: as in a GenerationResult, their `start` counted
    from the completion's first sampled token; the first span starts at `start`. top_logprobs: in the places of these n,
    where the request asked for them. prompt: in the first piece that is told, where it asked for it. routes: int16 [n,
    layers, experts of a token], where the token before each went, which gave its log-prob, if an engine records it.
    """

    request_id: str
    start: int
    token_ids: IntArray
    logprobs: FloatArray
    version_spans: tuple[VersionSpan, ...]
    top_logprobs: TopLogprobs | None = None
    prompt: PromptLogprobs | None = None
    routes: RouteArray | None = None

    @property
    def end(self) -> int:
        """The completion's number of tokens up to the end of the piece."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to make. Ids in, ids out: an engine knows nothing of text.

    `prompt_ids` is int32 of length >= 1. `seed` (unsigned, below 2**63) alone decides the sampled tokens, given
    the weights. Requests with equal prompts that are submitted together share one prefill. `so_far`: tokens that were
    sampled for it elsewhere, from the first one on; the completion goes on behind them, and they count as its own.

    Requests of one `conversation` ("" for none) follow one another, and what one leaves in a KV cache may serve the
    next. `opening`: tokens of the prompt that the first of them had (0: it is the first); those behind are of its later
    turns.

    `top_logprobs`: so many of the likeliest tokens are told in the place of each sampled one, and of each of the prompt
    where `prompt_logprobs`; at most MOST_TOP_LOGPROBS. `prompt_logprobs`: the prompt's log-probs are told; such a
    request is part of no conversation.

    `grammar`: of the completion's text; what cannot come by it is drawn with probability 0. `adjustments`: of its
    logits; None where there are none. With either, log-probs are of the distribution that is left.

    `tells_routes`: whoever asked through a gateway is told the experts of its tokens, by an engine that records them.
    """

    request_id: str
    prompt_ids: IntArray
    seed: int
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]
    so_far: PartialTokens | None = None
    conversation: str = ""
    opening: int = 0
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    grammar: Grammar | None = None
    adjustments: Adjustments | None = None
    tells_routes: bool = False


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One finished completion.

    token_ids: int32 [n], the sampled tokens, the stop token included.
    logprobs: float32 [n], of the distribution that was sampled (temperature and truncation applied).
    version_spans: `start` counts sampled tokens; the first span starts at 0; never empty unless n == 0.
    error: text when `finish_reason` is ERROR, else "".
    top_logprobs, prompt: of all n tokens, and of the prompt, where the request asked for them and was begun.
    routes: int16 [prompt + n, layers, experts of a token], the experts that each token of prompt and completion went to
    when it was read, of an engine that records them.
    """

    request_id: str
    token_ids: IntArray
    logprobs: FloatArray
    version_spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    error: str = ""
    top_logprobs: TopLogprobs | None = None
    prompt: PromptLogprobs | None = None
    routes: RouteArray | None = None


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What a server says of itself. running: requests that have a part of its KV cache. waiting: those that have none
    (not yet, or not any more). kv_use: share of the cache in use, 0 to 1."""

    running: int
    waiting: int
    kv_use: float


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an engine multiplies rows so that none depends on another: its bits are those of this way, on this processor.

    rung: its name in `streamrl.engines.torch.products`; `none` where none of them holds, and results depend on what
    shares a batch. why: it is that one. processor: and the variables that make a library take
    it for another.
    """

    rung: str
    why: str
    processor: str

    def __str__(self) -> str:
        return f"products of rows: {self.rung}; {self.why} ({self.processor})"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since start (tokens, requests) and gauges (running, waiting, kv_bytes_*). load: what a server said of
    itself last; None before that, and of an engine that keeps room for each of its slots. kept_tokens: of prompts,
    whose keys and values an earlier request of their conversation had left; of the engines of this process.
    arithmetic: of an engine that was asked for results that do not depend on what shares a batch."""

    running: int
    waiting: int
    generated_tokens: int
    finished_requests: int
    kv_bytes_used: int
    kv_bytes_total: int
    version: Version
    load: ServerLoad | None = None
    kept_tokens: int = 0
    arithmetic: Arithmetic | None = None


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """Leave to generate one group, given by the queue to one replica.

    number: place of the group among all, counted from 0; it decides the order inside a training batch.
    data_index: row of the task's training prompts. data_pass: the pass over the data.
    attempt: 0 for the first try. last_step: last step at which the group may be trained.
    submitted: its prompt was submitted by a client; data_index is its number among those then.
    passed_over: turns of the data order, right before the group's own, that nobody got: those of quarantined prompts.
    """

    number: int
    data_index: int
    data_pass: int
    attempt: int
    last_step: int
    submitted: bool = False
    passed_over: int = 0


class FrameRef(msgspec.Struct, frozen=True, array_like=True):
    """Where one durable Arrow record batch lies: a byte range of a segment file.

    path is relative to the run folder. checksum is XXH3-64 over the salt and the frame's bytes.
    """

    path: str
    offset: int
    length: int
    num_rows: int
    checksum: int
    salt: int


class RowRef(NamedTuple):
    """One row of one frame."""

    frame: FrameRef
    row: int


class ScoreStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"


class Score(msgspec.Struct, frozen=True, array_like=True):
    """The verdict on one rollout. A failed score has no number: `reward` is None and `reason` says why. info: a JSON
    object of what a reward function said beside its numbers, kept for people; "" for nothing."""

    status: ScoreStatus
    reward: float | None
    components: dict[str, float] = {}
    reason: str = ""
    info: str = ""

    @classmethod
    def ok(cls, reward: float, components: dict[str, float] | None = None, info: str = "") -> "Score":
        return cls(ScoreStatus.OK, reward, components or {}, "", info)

    @classmethod
    def failed(cls, reason: str) -> "Score":
        return cls(ScoreStatus.FAILED, None, {}, reason)


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """Rollouts ready for the learner: ragged, never padded. All token arrays are flat over the rows.

    offsets: int64 [N + 1]; row i owns tokens offsets[i]:offsets[i + 1].
    token_ids int32 [T], token_origin uint8 [T], rollout_logprobs float32 [T] (0 where not sampled).
    token_steps: int64 [T], the step of the version that sampled each token (-1 where not sampled).
    group: int64 [N], the group's number (data order). sample_index: int64 [N].
    rewards: float64 [N]; NaN where the score failed (`valid` is False there).
    valid: bool [N]. replica: str per row.
    routes: int16 [T, layers, experts of a token], where an engine recorded them; None where none did.
    """

    offsets: LongArray
    token_ids: IntArray
    token_origin: npt.NDArray[np.uint8]
    rollout_logprobs: FloatArray
    token_steps: LongArray
    group: LongArray
    sample_index: LongArray
    rewards: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]
    replica: list[str] = field(default_factory=list)
    routes: RouteArray | None = None

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    def lengths(self) -> LongArray:
        """int64 [N], tokens of each row."""
        return np.diff(self.offsets)

    def described(self, row: int) -> str:
        """What an error calls a row: its group, its sample, its replica and the newest version that sampled it."""
        steps = self.token_steps[self.offsets[row] : self.offsets[row + 1]]
        replica = self.replica[row] if self.replica else "a replica without name"
        version = f"version step {steps.max(initial=-1)}"
        return f"group {self.group[row]}, sample {self.sample_index[row]}, of {replica} under {version}"

    def oldest_steps(self) -> LongArray:
        """int64 [N], the step of each row's oldest sampled token (-1 for a row without one)."""
        never = np.iinfo(np.int64).max
        steps = np.where(self.token_steps < 0, never, self.token_steps)
        oldest = np.minimum.reduceat(steps, self.offsets[:-1]) if self.num_rows else steps
        return np.where(oldest == never, -1, oldest).astype(np.int64)
