"""An engine that is a server process: it keeps the books, a contract speaks to the server in a thread of its own.

Guaranteed:
* At most `slots` requests are with the server at once; the others wait here, in order.
* A result says for every token which version sampled it, or it is an ERROR (`streamrl.engines.server.books`).
* After a load the new version serves, or the old one does and the load raised; when neither can be said, or the server
  died or fell silent, ProcessDiedError: whoever owns the engine replaces it. Never a mix.
* `close` leaves no process, no socket and no file.

A step is not a token: it waits for news of the server and takes in what has come. Not known here: the server's routes,
text, and whether a version is newer than another.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from streamrl.engines.server.books import Running
from streamrl.engines.server.contract import Piece
from streamrl.engines.server.grammars import checked, fault_of_grammar
from streamrl.engines.server.inbox import Inbox
from streamrl.engines.server.model_tensors import ModelTensors
from streamrl.engines.server.server import Server
from streamrl.engines.server.weight_files import remove_weights, write_weights
from streamrl.errors import ComponentError, DeadlineError, ProcessDiedError, ResourceError, StreamRLError
from streamrl.models.grammars import Grammars
from streamrl.scheduling.partial_rollouts import ended_as, fault_of, unstarted
from streamrl.types import (
    MOST_TOP_LOGPROBS,
    EngineStats,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    ServerLoad,
    UpdateMode,
    Version,
)

if TYPE_CHECKING:
    import torch

_LOAD_EVERY_S = 0.2
"""Between two questions how full the server is: the answer is a page of metrics, and only a number of it is read."""
_SERVES_S = 10.0
"""For a server that refused a version to say which one it has."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A piece of the request that was sent as number `key`."""

    key: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class _Broke:
    """The talk with the server failed: it is of no use any more."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """slots: requests with the server at once. max_length: tokens of prompt and completion together. vocab_size: ids
    are below it. kv_bytes: of the server's KV cache. silence_s: without a word of a request, the server counts as dead.
    update_s: for a version to be taken up. tensors: what a version must have; None where only the server knows.
    grammars: over the model's tokens; None where it has no tokenizer. routes: layers and experts of a token, where
    the server names a token's experts."""

    slots: int
    max_length: int
    vocab_size: int
    kv_bytes: int
    silence_s: float
    update_s: float
    tensors: ModelTensors | None = None
    grammars: Grammars | None = None
    routes: tuple[int, int] | None = None


class ServerEngine:
    """`streamrl.engines.base.Engine` around a server that is ready. It owns the server: `close` ends it."""

    token_steps: ClassVar[bool] = False

    def __init__(self, server: Server, version: Version, limits: ServerLimits) -> None:
        self._server = server
        self._limits = limits
        self._version = version
        self._inbox: Inbox[_Arrived | _Broke | ServerLoad] = Inbox()
        self._waiting: deque[GenerationRequest] = deque()
        self._running: dict[int, Running] = {}
        self._sent = 0
        self._ended: list[GenerationResult] = []
        self._drained: tuple[Path, Version] | None = None
        self._death: ProcessDiedError | None = None
        self._load: ServerLoad | None = None
        self._asking = False
        self._asked = -math.inf
        self._generated = 0
        self._finished = 0
        self._closed = False
        server.on_end(lambda error: self._inbox.put(_Broke(error)))

    @property
    def version(self) -> Version:
        return self._version

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._ended or self._drained or self._death)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self._check_open()
        for request in requests:
            fault = self._fault(request)
            reason = FinishReason.ERROR if fault else ended_as(request)
            if reason is None:
                self._waiting.append(request)
            else:
                self._ended.append(unstarted(request, reason, fault))
        self._send()

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `Engine.abort`. One that the server has comes back when the server says how far it was."""
        self._check_open()
        gone = set(request_ids)
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if request.request_id in gone:
                self._ended.append(unstarted(request, FinishReason.ABORT))
            else:
                self._waiting.append(request)
        running = [one for one in self._running.values() if one.request.request_id in gone and not one.aborted]
        for one in running:
            one.aborted = True
        if running:
            self._server.start([self._server.contract.abort([one.request.request_id for one in running])], self._broke)

    def prepare(self, tensors: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        """The tensors: the server goes on while they are written for it."""
        return tensors

    def load_weights(self, tensors: "Mapping[str, torch.Tensor]", version: Version, mode: UpdateMode) -> None:
        """See `Engine.load_weights`. A load replaces a drained one that is still pending.

        Raises ComponentError when the server refused the version and the old one serves on, ResourceError when shared
        memory has no room for it, and ProcessDiedError when nobody can say which version serves.
        """
        self._check_open()
        self._check_alive()
        if self._limits.tensors is not None and (fault := self._limits.tensors.fault_of(tensors)):
            raise self._refusal(version, f"the weights are not the model's: {fault}")
        folder = self._write(tensors)
        self._forget_drained()
        # What has come up to here is of the old version for certain.
        self._take_in()
        if mode is UpdateMode.DRAIN and self._running:
            self._drained = folder, version
        else:
            self._update(folder, version, mode)
        self._send()

    def step(self) -> list[GenerationResult]:
        """Wait for news of the server, take it in, and return what ended. Raises ProcessDiedError."""
        self._check_open()
        self._check_alive()
        if self._running and not self._ended and not self._inbox.wait(self._patience()):
            self._check_silence()
        self._take_in()
        self._finish_drain()
        self._send()
        ended, self._ended = self._ended, []
        self._finished += len(ended)
        return ended

    def interrupt(self) -> None:
        self._inbox.interrupt()

    def partials(self, least: int, among: Collection[str] | None = None) -> list[PartialTokens]:
        """See `Engine.partials`. Only tokens whose version is certain before the end: those that were here before an
        update."""
        self._check_open()
        asked = (one for one in self._running.values() if among is None or one.request.request_id in among)
        pieces = (one.partial(least) for one in asked)
        return [piece for piece in pieces if piece is not None]

    def stats(self) -> EngineStats:
        """What the books say, and of the KV cache what the server said when it was asked last: asking takes time, so
        a call asks for the next one, if the last was not just now."""
        self._check_open()
        now = time.monotonic()
        if self._death is None and not self._asking and now - self._asked >= _LOAD_EVERY_S:
            self._asking, self._asked = True, now
            self._server.start([self._ask_load()], self._broke)
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            generated_tokens=self._generated,
            finished_requests=self._finished,
            kv_bytes_used=0 if self._load is None else int(self._load.kv_use * self._limits.kv_bytes),
            kv_bytes_total=self._limits.kv_bytes,
            version=self._version,
            load=self._load,
        )

    def close(self) -> None:
        """End the server. Only `close` may be called afterwards."""
        if not self._closed:
            self._closed = True
            self._server.close()

    # ---- requests

    def _fault(self, request: GenerationRequest) -> str:
        """Why it can never run; "" when it can."""
        prompt, limits = request.prompt_ids, self._limits
        if not len(prompt):
            return "the prompt is empty"
        if int(prompt.min()) < 0 or int(prompt.max()) >= limits.vocab_size:
            return f"a prompt id is outside 0..{limits.vocab_size - 1}"
        if request.sampling.max_new_tokens < 1:
            return f"max_new_tokens is {request.sampling.max_new_tokens}; it must be 1 or more"
        length = len(prompt) + request.sampling.max_new_tokens
        if length > limits.max_length:
            return f"prompt and completion may take {length} tokens; the engine was made for {limits.max_length}"
        if not 0 <= request.top_logprobs <= MOST_TOP_LOGPROBS:
            return f"top_logprobs = {request.top_logprobs} is outside 0..{MOST_TOP_LOGPROBS}"
        if request.top_logprobs >= limits.vocab_size:
            return f"top_logprobs = {request.top_logprobs} of a vocabulary of {limits.vocab_size}"
        if fault := fault_of_grammar(request, limits.grammars):
            return fault
        return "" if request.so_far is None else fault_of(request.so_far, request, limits.vocab_size)

    def _send(self) -> None:
        """Hand to the server what there is room for."""
        if self._drained is not None or self._death is not None:
            return
        plays, now = [], time.monotonic()
        ids = {one.request.request_id for one in self._running.values()}
        while self._waiting and len(self._running) < self._limits.slots:
            # An older request of the same id was aborted and has not ended yet: its end must come first.
            if self._waiting[0].request_id in ids:
                break
            request = self._waiting.popleft()
            ids.add(request.request_id)
            self._running[self._sent] = Running(request, [self._version], now, self._limits.routes)
            plays.append(self._play(self._sent, request))
            self._sent += 1
        if plays:
            self._server.start(plays, self._broke)

    async def _play(self, key: int, request: GenerationRequest) -> None:
        """In the loop's thread: pass on what the server says of one request."""
        ended = False
        async for piece in self._server.contract.generate(request):
            if ended:
                raise ComponentError(f"the answer to request {request.request_id} goes on behind its end")
            ended = piece.finish_reason is not None
            self._inbox.put(_Arrived(key, piece))
        if not ended:
            raise ComponentError(f"the answer to request {request.request_id} ended without saying how")

    async def _ask_load(self) -> None:
        self._inbox.put(await self._server.contract.load())

    def _broke(self, error: BaseException) -> None:
        """In the loop's thread."""
        self._inbox.put(_Broke(error))

    def _take_in(self) -> None:
        """Enter all news into the books. Raises ProcessDiedError when the server is of no use any more."""
        broke: BaseException | None = None
        for news in self._inbox.take():
            match news:
                case _Arrived(key, piece):
                    self._enter(key, piece)
                case _Broke(error):
                    broke = broke or error
                case ServerLoad():
                    self._load, self._asking = news, False
        if broke is not None:
            raise self._die(broke)

    def _enter(self, key: int, piece: Piece) -> None:
        running = self._running[key]
        running.heard = time.monotonic()
        running.add(piece)
        self._generated += len(piece.token_ids)
        if piece.finish_reason is not None:
            del self._running[key]
            self._ended.append(checked(running.request, running.result(piece), self._limits.grammars))

    # ---- versions

    def _finish_drain(self) -> None:
        if self._drained is not None and not self._running:
            (folder, version), self._drained = self._drained, None
            self._update(folder, version, UpdateMode.DRAIN)

    def _forget_drained(self) -> None:
        if self._drained is not None:
            remove_weights(self._drained[0])
            self._drained = None

    def _write(self, tensors: "Mapping[str, torch.Tensor]") -> Path:
        """Where the server can read them. Raises ResourceError and ProcessDiedError."""
        try:
            return write_weights(tensors, self._server.folder)
        except (FileNotFoundError, ResourceError) as error:
            if self._server.folder.exists():
                raise
            # It goes with the server's process, and nobody has heard of that end yet.
            raise self._die(error) from error

    def _update(self, folder: Path, version: Version, mode: UpdateMode) -> None:
        """Let the server take up what lies in `folder`, and remove it."""
        for running in self._running.values():
            running.update_begins(version)
        what = f"taking up version {version}"
        try:
            self._server.run(self._server.contract.update(folder, version, mode), self._limits.update_s, what)
        except StreamRLError as error:
            self._refused(error, version)
        finally:
            remove_weights(folder)
        self._version = version
        now = time.monotonic()
        for running in self._running.values():
            # It was paused meanwhile, and could not say anything.
            running.heard = now

    def _refused(self, error: StreamRLError, version: Version) -> None:
        """Raise what a failed update means: the old version serves on, or nobody knows."""
        # After a deadline the server may still be at it, whatever it says now.
        if not isinstance(error, ProcessDiedError | DeadlineError) and self._serves() == self._version:
            for running in self._running.values():
                running.versions.remove(version)
            raise self._refusal(version, error) from error
        raise self._die(error)

    def _refusal(self, version: Version, why: object) -> ComponentError:
        told = f"version {version} was refused, version {self._version} serves on: {why}"
        return ComponentError(f"{self._server.name}: {told}")

    def _serves(self) -> Version | None:
        """The version that the server says it has; None when it cannot say."""
        try:
            return self._server.run(self._server.contract.serves(), _SERVES_S, "saying which version serves")
        except StreamRLError:
            return None

    # ---- the end

    def _patience(self) -> float:
        """Seconds until the server has said nothing of some request for too long."""
        oldest = min(running.heard for running in self._running.values())
        return oldest + self._limits.silence_s - time.monotonic()

    def _check_silence(self) -> None:
        silent = min(self._running.values(), key=lambda running: running.heard)
        if time.monotonic() - silent.heard >= self._limits.silence_s:
            words = f"no word of request {silent.request.request_id} for {self._limits.silence_s:g} s"
            raise self._die(DeadlineError(words))

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death

    def _die(self, error: BaseException) -> ProcessDiedError:
        """Note the server's end; every call for its work raises this from now on."""
        self._death = ProcessDiedError(self._server.obituary(error))
        self._death.__cause__ = error
        return self._death

    def _check_open(self) -> None:
        if self._closed:
            raise ComponentError(f"{self._server.name}: it was closed; make a new engine")
