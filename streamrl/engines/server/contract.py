"""What a rollout engine needs of a server program, whatever its routes are called.

    ServerEngine  --verbs-->  ServerContract  --HTTP-->  a vLLM or an SGLang process

A contract knows one program's routes, field names and traps. It keeps no books: which version is newest, which requests
run and what is waited for is the engine's business. All of it runs in one event loop.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    IntArray,
    PromptLogprobs,
    RouteArray,
    ServerLoad,
    TopLogprobs,
    UpdateMode,
    Version,
    VersionSpan,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """What a server says of one request: its next tokens, or how it ended.

    token_ids int32 [n], logprobs float32 [n] of the distribution that was sampled; n may be 0. finish_reason: None
    until the last piece. version_spans: of the whole completion, counted from its first sampled token; only with the
    last piece, and there for every completion with a token. error: the server's text when `finish_reason` is ERROR.
    top_logprobs: in the places of these tokens, as many as the request asks for. prompt: with the first piece of a
    request that asks for it. routes: int16 [n, layers, experts of a token], the experts that each token went to but for
    the last one, the prompt's first; with the last piece, of a server that names them.
    """

    token_ids: IntArray
    logprobs: FloatArray
    finish_reason: FinishReason | None = None
    version_spans: tuple[VersionSpan, ...] = ()
    error: str = ""
    top_logprobs: TopLogprobs | None = None
    prompt: PromptLogprobs | None = None
    routes: RouteArray | None = None

    @classmethod
    def failed(cls, error: str) -> "Piece":
        """The last piece of a completion that came to nothing."""
        return cls(np.empty(0, np.int32), np.empty(0, np.float32), FinishReason.ERROR, (), error)

    @classmethod
    def aborted(cls) -> "Piece":
        """The last piece of a completion that was aborted before its first token."""
        return cls(np.empty(0, np.int32), np.empty(0, np.float32), FinishReason.ABORT)


class ServerContract(Protocol):
    """One server program behind its base URL.

    Every method raises ComponentError, with the route and the server's own words, when the server refuses, and
    ProcessDiedError when nobody answers any more.
    """

    async def ready(self) -> bool:
        """Whether the server takes requests now. False while it starts or is paused; never raises because nothing
        listens yet."""
        ...

    async def identify(self) -> str:
        """The server's version. Raises ConfigError, naming it and what is spoken here, for one that is too old or too
        new."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Piece]:
        """Stream one completion; the last piece has a finish reason. A request that the server refuses ends as one
        ERROR piece. Tokens `so_far` are sent as part of the prompt and are not in the pieces; what is sampled counts
        from behind them."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests early; each stream then ends as ABORT with what it had. Unknown ids are ignored."""
        ...

    async def update(self, weights: Path, version: Version, mode: UpdateMode) -> None:
        """Take the safetensors in the folder `weights` (one or several files, a whole model) as `version`, with the
        program's own verbs in the right order.

        `keep` and `recompute` may be called while requests run; `drain` only when none does. When it returns, every
        token sampled from now on is of `version`, and caches keyed by weights are reset or recomputed. When it raises,
        `serves` tells which version answers; None if that cannot be said, and then the server must be ended.
        """
        ...

    async def serves(self) -> Version | None:
        """The version that samples the next token, as the server labels it; None before the first or if unknown."""
        ...

    async def load(self) -> ServerLoad: ...

    async def close(self) -> None:
        """Close the connections; the server goes on."""
        ...
