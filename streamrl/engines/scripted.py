"""An engine that plays a script: no model, no torch, faults on demand.

Guaranteed: tokens, lengths, log-probs and faults of a request follow from its seed alone (a correct answer
also from the version of its first token), whatever shares its batch; each step that is due adds one token to every
running request; version spans are exact; a request goes on behind the tokens that it came with. It ignores the
contents of weights. A NaN log-prob leaves it on purpose (`nan_rate`): it plays a broken engine, so that the gate behind
it can be seen to close; so do rollouts that never end (`hang_rate`), so that who waits for them can be seen to go on.
"""

import bisect
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamrl.clock import Clock, SystemClock
from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.engines.pace import Pace
from streamrl.engines.script import Script, ScriptedAnswers, write_scripts
from streamrl.errors import ComponentError
from streamrl.scheduling.partial_rollouts import cut_from, ended_as, fault_of, join_spans, unstarted
from streamrl.types import (
    EngineStats,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    UpdateMode,
    Version,
    VersionSpan,
)

_INITIAL = Version(0, 0)


@dataclass(slots=True, eq=False)
class _Running:
    """A request in a slot. It came with `known` tokens and has `known + step - started` after `step` steps of the
    engine; `told` of them were told by `partials`."""

    request: GenerationRequest
    script: Script
    started: int
    known: int
    told: int = 0


class ScriptedEngine:
    """`streamrl.engines.base.Engine` by script.

    slots: requests that run at once. vocab_size: ids are below it. eos_token_id: ends a rollout that is done.
    answers: makes answers correct, more often with each version; without it tokens are uniform noise.
    context_length: prompt and completion together, at most. clock: says when a step is due; the machine's when None.
    """

    token_steps: ClassVar[bool] = True

    def __init__(
        self,
        config: ScriptedConfig,
        *,
        slots: int,
        vocab_size: int,
        eos_token_id: int,
        version: Version = _INITIAL,
        answers: ScriptedAnswers | None = None,
        context_length: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._pace = Pace(config.step_s, clock or SystemClock())
        self._slots = slots
        self._vocab_size = vocab_size
        self._eos_token_id = eos_token_id
        self._answers = answers
        self._context_length = context_length
        self._step = 0
        self._versions: list[tuple[int, Version]] = [(0, version)]
        self._draining_to: Version | None = None
        self._waiting: deque[GenerationRequest] = deque()
        self._running: dict[str, _Running] = {}
        self._hanging: dict[str, GenerationRequest] = {}
        """In slots, for ever."""
        self._due: dict[int, list[_Running]] = {}
        self._ended: list[GenerationResult] = []
        self._generated_tokens = 0
        self._finished_requests = 0
        self._closed = False

    @property
    def version(self) -> Version:
        return self._versions[-1][1]

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._hanging or self._waiting or self._ended or self._draining_to)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Queue requests; see `Engine.submit`.

        Raises:
            ComponentError: a request id is in the engine already.
        """
        self._refuse_closed("submit")
        known = {*self._running, *self._hanging, *(request.request_id for request in self._waiting)}
        for request in requests:
            if request.request_id in known:
                raise ComponentError(f"scripted engine: request {request.request_id} was submitted twice")
            known.add(request.request_id)
            error = self._why_never(request)
            reason = FinishReason.ERROR if error else ended_as(request)
            if reason is not None:
                self._ended.append(unstarted(request, reason, error))
            else:
                self._waiting.append(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests early; unknown ids are ignored, since they may have finished meanwhile."""
        self._refuse_closed("abort")
        aborted = set(request_ids)
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if request.request_id in aborted:
                self._ended.append(unstarted(request, FinishReason.ABORT))
            else:
                self._waiting.append(request)
        for running in [self._running[key] for key in self._running if key in aborted]:
            self._ended.append(self._result(running, FinishReason.ABORT))
        for key in [key for key in self._hanging if key in aborted]:
            self._ended.append(unstarted(self._hanging.pop(key), FinishReason.ABORT))
        self._switch_if_drained()

    def prepare(self, tensors: Mapping[str, object]) -> Mapping[str, object]:
        """The tensors: they are not looked at."""
        return tensors

    def load_weights(self, tensors: Mapping[str, object], version: Version, mode: UpdateMode) -> None:
        """Take `version`; the tensors are not looked at.

        Raises:
            ComponentError: `version` is no newer than the one that runs or waits to.
        """
        self._refuse_closed("load_weights")
        newest = self._draining_to or self.version
        if version <= newest:
            raise ComponentError(f"scripted engine: version {version} refused: {newest} is no older")
        if mode is UpdateMode.DRAIN:
            self._draining_to = version
            self._switch_if_drained()
        else:
            self._draining_to = None
            self._switch(version)

    def step(self) -> list[GenerationResult]:
        self._refuse_closed("step")
        ended, self._ended = self._ended, []
        self._start_waiting()
        if (self._running or self._hanging) and self._pace.due():
            self._step += 1
            self._generated_tokens += len(self._running)
            for running in self._due.pop(self._step, ()):
                if self._running.get(running.request.request_id) is running:
                    ended.append(self._result(running, running.script.finish_reason))
        self._switch_if_drained()
        self._finished_requests += len(ended)
        return ended

    def interrupt(self) -> None:
        self._pace.interrupt()

    def partials(self, least: int, among: Collection[str] | None = None) -> list[PartialTokens]:
        self._refuse_closed("partials")
        pieces = []
        asked = self._running if among is None else among
        for running in [self._running[key] for key in asked if key in self._running]:
            end = self._length(running)
            if end - running.told >= max(1, least):
                pieces.append(self._partial(running, end))
                running.told = end
        return pieces

    def stats(self) -> EngineStats:
        self._refuse_closed("stats")
        return EngineStats(
            running=len(self._running) + len(self._hanging),
            waiting=len(self._waiting),
            generated_tokens=self._generated_tokens,
            finished_requests=self._finished_requests,
            kv_bytes_used=0,
            kv_bytes_total=0,
            version=self.version,
        )

    def close(self) -> None:
        self._closed = True

    def _why_never(self, request: GenerationRequest) -> str:
        prompt = request.prompt_ids
        if not len(prompt):
            return "the prompt is empty"
        if int(prompt.min()) < 0 or int(prompt.max()) >= self._vocab_size:
            return f"a prompt id is outside 0..{self._vocab_size - 1}"
        if request.sampling.max_new_tokens < 1:
            return f"max_new_tokens is {request.sampling.max_new_tokens}; it must be 1 or more"
        length = len(prompt) + request.sampling.max_new_tokens
        if self._context_length is not None and length > self._context_length:
            return f"prompt and completion may take {length} tokens; the context has {self._context_length}"
        if request.top_logprobs or request.prompt_logprobs:
            return "a script has log-probs of its own tokens alone"
        return "" if request.so_far is None else fault_of(request.so_far, request, self._vocab_size)

    def _start_waiting(self) -> None:
        if self._draining_to is not None:
            return
        room = min(self._slots - len(self._running) - len(self._hanging), len(self._waiting))
        if room <= 0:
            return
        requests = [self._waiting.popleft() for _ in range(room)]
        steps = [self._first_version(request).step for request in requests]
        scripts = write_scripts(requests, self._config, self._answers, steps, self._vocab_size, self._eos_token_id)
        for request, script in zip(requests, scripts, strict=True):
            if script.hangs:
                self._hanging[request.request_id] = request
                continue
            running = self._go_on(request, script)
            self._running[request.request_id] = running
            left = len(running.script.token_ids) - running.known
            self._due.setdefault(self._step + left, []).append(running)

    def _first_version(self, request: GenerationRequest) -> Version:
        return self.version if request.so_far is None else request.so_far.version_spans[0].version

    def _go_on(self, request: GenerationRequest, script: Script) -> _Running:
        """Put a request into a slot, what it came with in place of what the script says. At least one token follows."""
        so_far = request.so_far
        if so_far is None:
            return _Running(request, script, self._step, 0)
        behind = min(so_far.end, len(script.token_ids) - 1)
        ids = np.concatenate((so_far.token_ids, script.token_ids[behind:]))
        logprobs = np.concatenate((so_far.logprobs, script.logprobs[behind:]))
        return _Running(request, Script(ids, logprobs, script.finish_reason), self._step, so_far.end)

    def _result(self, running: _Running, reason: FinishReason) -> GenerationResult:
        """Take a request out of its slot, with the tokens that it has."""
        del self._running[running.request.request_id]
        length = self._length(running)
        return GenerationResult(
            running.request.request_id,
            running.script.token_ids[:length],
            running.script.logprobs[:length],
            self._all_spans(running),
            reason,
            error="the script says so" if reason is FinishReason.ERROR else "",
        )

    def _length(self, running: _Running) -> int:
        return running.known + self._step - running.started

    def _partial(self, running: _Running, end: int) -> PartialTokens:
        """What `partials` has not told of a request yet; it has `end` tokens."""
        ids, logprobs = running.script.token_ids, running.script.logprobs
        whole = PartialTokens(running.request.request_id, 0, ids[:end], logprobs[:end], self._all_spans(running))
        return cut_from(whole, running.told)

    def _all_spans(self, running: _Running) -> tuple[VersionSpan, ...]:
        so_far = running.request.so_far
        sampled = self._spans(running.started, self._step - running.started)
        moved = (VersionSpan(running.known + span.start, span.version) for span in sampled)
        return join_spans(() if so_far is None else so_far.version_spans, moved)

    def _spans(self, started: int, length: int) -> tuple[VersionSpan, ...]:
        """Token i of those sampled here was sampled in step `started + i`, by the version of that step."""
        if not length:
            return ()
        first = bisect.bisect_right(self._versions, started, key=_from_step) - 1
        stop = bisect.bisect_left(self._versions, started + length, key=_from_step)
        return tuple(VersionSpan(max(0, step - started), version) for step, version in self._versions[first:stop])

    def _switch_if_drained(self) -> None:
        if self._draining_to is not None and not self._running and not self._hanging:
            version, self._draining_to = self._draining_to, None
            self._switch(version)

    def _switch(self, version: Version) -> None:
        """Let `version` sample from the next step on, and forget those that no running request saw."""
        if self._versions[-1][0] == self._step:
            self._versions.pop()
        self._versions.append((self._step, version))
        oldest = min((running.started for running in self._running.values()), default=self._step)
        del self._versions[: bisect.bisect_right(self._versions, oldest, key=_from_step) - 1]

    def _refuse_closed(self, verb: str) -> None:
        if self._closed:
            raise ComponentError(f"scripted engine: {verb} after close")


def _from_step(entry: tuple[int, Version]) -> int:
    """The step of the engine from which on a version samples."""
    return entry[0]
