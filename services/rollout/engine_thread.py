"""The one thread that owns a replica's engine.

Everything that touches the engine runs here, between two of its steps: so a version never changes in the middle
of a forward pass, and the actor's event loop is never blocked by one. The thread sleeps on a condition when there
is nothing to do. It knows neither Ray, nor the queue, nor Arrow.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from streamrl.engines.base import Engine
from streamrl.observability.timeline import TraceWriter
from streamrl.types import (
    EngineStats,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    ServerLoad,
    UpdateMode,
    Version,
)

if TYPE_CHECKING:
    import torch


class SpareWork(Protocol):
    """Work for the moments in which the stream leaves the thread free (an evaluation)."""

    @property
    def done(self) -> bool: ...

    @property
    def ready(self) -> bool:
        """Whether a step would do anything now. Who makes it so wakes the thread."""
        ...

    def step(self) -> None: ...


@dataclass(slots=True)
class _Load:
    """A version on its way into the engine. command: done when the engine has taken it, which may answer later."""

    version: Version
    loaded: Future[float] = field(default_factory=Future)
    command: Future[None] = field(default_factory=Future)
    began_ns: int = 0
    stalls: bool = False


# One step of spare work for so many steps of the stream, so that an evaluation ends although the stream never rests.
SPARE_EVERY = 4
# What watched requests sample within it is shown together.
SHOW_S = 0.05


class EngineThread:
    """Runs an engine and delivers what finishes.

    `make_engine` is called in the thread (thread counts are a thread's own affair). `deliver(results, idle)` is
    called in the thread with everything that finished in a step, and whenever the engine ran out of work (`idle`);
    it must not block. `on_death(error)` is called once if the thread fails. `report(pieces)`, in the thread too, takes
    what running requests have sampled since the last time: every `report_every` steps of those with that many such
    tokens (every step, where steps are not tokens), and at the end, when it is stopped, of all. 0 reports nothing.
    `hear(load)`, in the thread too, takes each new word of a server on how full it is. `show(pieces)`, in the thread
    too, takes what the requests that are watched have sampled, every `SHOW_S`; so does `report`, where it comes first.

    Example:
        thread = EngineThread(make_engine, deliver, on_death)
        thread.start().result(timeout=60)
        thread.submit(requests)
        thread.load(tensors, version, UpdateMode.KEEP).result()
        thread.stop()
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        deliver: Callable[[list[GenerationResult], bool], None],
        on_death: Callable[[BaseException], None],
        trace: TraceWriter | None = None,
        report: Callable[[list[PartialTokens]], None] | None = None,
        report_every: int = 0,
        hear: Callable[[ServerLoad], None] | None = None,
        show: Callable[[list[PartialTokens]], None] | None = None,
    ) -> None:
        self._show = show
        self._watched: frozenset[str] = frozenset()
        self._shown = 0.0
        self._hear = hear
        self._heard: ServerLoad | None = None
        self._report = report if report_every else None
        self._report_every = report_every
        self._steps_untold = 0
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._deliver = deliver
        self._on_death = on_death
        self._trace = trace
        self._busy_since = 0
        self._busy_ns = 0
        self._spare_steps = 0
        self._commands: deque[tuple[Callable[[Engine], Any], Future[Any]]] = deque()
        self._spare: deque[tuple[SpareWork, Future[None]]] = deque()
        self._loading: list[_Load] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> Future[None]:
        """Start the thread; the future is done when the engine stands, or carries what kept it from standing."""
        self._thread.start()
        return self._ready

    def submit(self, requests: Sequence[GenerationRequest]) -> Future[None]:
        return self.call(lambda engine: engine.submit(requests))

    def abort(self, request_ids: Sequence[str]) -> Future[None]:
        return self.call(lambda engine: engine.abort(request_ids))

    def watch(self, *, add: Iterable[str] = (), drop: Iterable[str] = ()) -> None:
        """Show from now on what these requests sample, and no more what those do. Called by one thread."""
        self._watched = (self._watched | frozenset(add)) - frozenset(drop)

    def prepare(self, tensors: "Mapping[str, torch.Tensor]") -> Any:
        """What `load` takes in the place of `tensors`, made in the caller's thread, beside the steps."""
        assert self._engine is not None, "prepare before start"
        return self._engine.prepare(tensors)

    def load(self, tensors: "Mapping[str, torch.Tensor]", version: Version, mode: UpdateMode) -> Future[float]:
        """Hand a version to the engine; done when it answers (under `drain` that is when the last request of the
        old version is done). Keep `tensors` until then.

        Gives the seconds that this took away from requests: from its begin until it answers, 0.0 when there were none.
        """
        load = _Load(version)

        def begin(engine: Engine) -> None:
            load.began_ns, load.stalls = time.monotonic_ns(), engine.has_work
            engine.load_weights(tensors, version, mode)

        def begun(command: Future[None]) -> None:
            load.command = command
            self._loading.append(load)

        self.call(begin).add_done_callback(begun)
        return load.loaded

    def stats(self) -> Future[EngineStats]:
        return self.call(lambda engine: engine.stats())

    def busy_s(self) -> float:
        """Seconds since the start in which requests were running or waiting. May be read from any thread."""
        since = self._busy_since
        return (self._busy_ns + (time.monotonic_ns() - since if since else 0)) / 1e9

    @property
    def spare_steps(self) -> int:
        """Steps of spare work so far. May be read from any thread."""
        return self._spare_steps

    def call(self, command: Callable[[Engine], Any]) -> Future[Any]:
        """Run `command(engine)` between two steps."""
        future: Future[Any] = Future()
        with self._wake:
            if self._stopping:
                raise RuntimeError("the engine thread has been stopped")
            self._commands.append((command, future))
            self._wake_up()
        return future

    def run_spare(self, work: SpareWork) -> Future[None]:
        """Step `work` until it is done, when the stream rests and at least every `SPARE_EVERY` steps of it."""
        future: Future[None] = Future()
        with self._wake:
            self._spare.append((work, future))
            self._wake_up()
        return future

    def wake(self) -> None:
        """Spare work has become ready. From any thread."""
        with self._wake:
            self._wake_up()

    def stop(self, timeout: float | None = None) -> None:
        """End the thread after its current step; the engine is closed, waiting commands are cancelled."""
        with self._wake:
            self._stopping = True
            self._wake_up()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    @property
    def _spare_is_ready(self) -> bool:
        return bool(self._spare) and self._spare[0][0].ready

    def _wake_up(self) -> None:
        """Let the thread look for what is new, whether it sleeps here or in a step that waits for a server."""
        self._wake.notify()
        if self._engine is not None:
            self._engine.interrupt()

    def _main(self) -> None:
        try:
            engine = self._engine = self._make_engine()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiter must hear it
            self._end_waiting(None)
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        try:
            self._loop(engine)
            self._report_partials(engine, 1)
        except BaseException as error:  # noqa: BLE001 - a dead engine thread must never be silent
            self._on_death(error)
            self._end_waiting(error)
        finally:
            engine.close()
            self._end_waiting(None)

    def _loop(self, engine: Engine) -> None:
        steps_since_spare = 0
        while self._await_work(engine):
            self._run_commands(engine)
            self._report_loaded(engine)
            if engine.has_work:
                steps_since_spare += 1
                self._mark_busy(True)
                if self._spare_is_ready:
                    engine.interrupt()  # a step that waits would keep the spare work waiting, too
                finished = engine.step()
                self._report_loaded(engine)
                busy = engine.has_work
                self._mark_busy(busy)
                if finished or not busy:
                    self._deliver(finished, not busy)
                self._steps_untold += 1
                if self._steps_untold == self._report_every or not engine.token_steps:
                    self._report_partials(engine, self._report_every)
                self._show_watched(engine)
                if self._hear is not None and not engine.token_steps:
                    self._report_load(engine.stats().load, self._hear)
            if self._spare_is_ready and (not engine.has_work or steps_since_spare >= SPARE_EVERY):
                steps_since_spare = 0
                self._step_spare()
                self._spare_steps += 1

    def _report_partials(self, engine: Engine, least: int) -> None:
        self._steps_untold = 0
        pieces = engine.partials(least) if self._report is not None else []
        if self._report is not None and pieces:
            self._report(pieces)

    def _show_watched(self, engine: Engine) -> None:
        watched, now = self._watched, time.monotonic()
        if self._show is None or not watched or now < self._shown + SHOW_S:
            return
        self._shown = now
        if pieces := engine.partials(1, watched):
            self._show(pieces)

    def _report_load(self, load: ServerLoad | None, hear: Callable[[ServerLoad], None]) -> None:
        if load is not None and load is not self._heard:
            self._heard = load
            hear(load)

    def _await_work(self, engine: Engine) -> bool:
        with self._wake:
            while not (self._stopping or self._commands or self._spare_is_ready or engine.has_work):
                self._wake.wait()
            return not self._stopping

    def _run_commands(self, engine: Engine) -> None:
        while self._commands:
            command, future = self._commands.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(command(engine))
            except Exception as error:  # noqa: BLE001 - it is the caller's, who waits for it
                future.set_exception(error)

    def _mark_busy(self, busy: bool) -> None:
        """Busy from the first request to the last result: one span on the time line."""
        now = time.monotonic_ns()
        if busy and not self._busy_since:
            self._busy_since = now
        elif not busy and self._busy_since:
            if self._trace is not None:
                self._trace.add("generate", self._busy_since, now, "engine")
            self._busy_ns += now - self._busy_since
            self._busy_since = 0

    def _report_loaded(self, engine: Engine) -> None:
        """Tell those whose version answers now, or whose load was refused."""
        if not self._loading:
            return
        waiting = []
        for load in self._loading:
            error = load.command.exception()
            if error is None and engine.version < load.version:
                waiting.append(load)
            elif not load.loaded.set_running_or_notify_cancel():
                continue  # whoever waited has given up
            elif error is not None:
                load.loaded.set_exception(error)
            else:
                load.loaded.set_result(self._stalled(load))
        self._loading = waiting

    def _stalled(self, load: "_Load") -> float:
        if not load.stalls:
            return 0.0
        now = time.monotonic_ns()
        if self._trace is not None:
            self._trace.add("stall", load.began_ns, now, "stalls")
        return (now - load.began_ns) / 1e9

    def _step_spare(self) -> None:
        work, future = self._spare[0]
        try:
            work.step()
        except Exception as error:  # noqa: BLE001 - it is the caller's, who waits for it
            self._spare.popleft()
            future.set_exception(error)
            return
        if work.done:
            self._spare.popleft()
            future.set_result(None)

    def _end_waiting(self, error: BaseException | None) -> None:
        """Nothing more is done for anybody: those who wait hear what the engine died of, or are cancelled."""
        with self._wake:
            self._stopping = True
            waiting = [one[1] for one in (*self._commands, *self._spare)]
            self._commands.clear()
            self._spare.clear()
        for future in waiting:
            _end(future, error)
        # After the commands: a load whose command ends is among these only then.
        for load in self._loading:
            _end(load.loaded, error)
        self._loading.clear()


def _end(future: "Future[Any]", error: BaseException | None) -> None:
    if error is None or not future.set_running_or_notify_cancel():
        future.cancel()
    else:
        future.set_exception(error)
