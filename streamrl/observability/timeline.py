"""Where a step's time went, and the spans of every component on one time line.

Guarantees: the `time/` numbers of a step sum to its wall clock, to the nanosecond, because time is counted
once (an inner phase stops the outer one), what no phase claims is `time/other`, and the next step begins
where the last one ended. A trace file survives a kill up to its last flush. It does not know what the phases
mean. How trace files become one picture is in `chrome_trace`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from streamrl.clock import Clock
from streamrl.system.disk import NO_ROOM

RESERVED = ("other", "step")
"""Names that the ledger itself uses."""

FLUSH_SPANS = 512
FLUSH_NS = 1_000_000_000
"""A live reader is at most a second of spans behind, and the file is not written for each of them."""

MAX_TRACE_BYTES = 64 * 2**20


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One complete span. Times are nanoseconds of the machine's monotonic clock; track names a row of the
    picture."""

    name: str
    start_ns: int
    duration_ns: int
    track: str = "main"
    args: dict[str, float | int | str] = {}


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a process's spans: who it is, and the wall clock at monotonic zero, in nanoseconds."""

    component: str
    pid: int
    epoch_ns: int


class TraceWriter:
    """Appends a component's spans to a JSON-lines file, in batches. Threads may share it.

    Spans beyond `max_bytes` are counted in `dropped` and not written: a long run must not fill the disk.

    Example:
        with TraceWriter(run / "trace" / "learner.jsonl", "learner") as trace:
            with trace.span("checkpoint"):
                ...
    """

    def __init__(self, path: Path, component: str, max_bytes: int = MAX_TRACE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.dropped = 0
        self._spans: list[Span] = []
        self._flushed_ns = time.monotonic_ns()
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        self._torn = False
        self._file = path.open("ab", buffering=0)
        self._room = max_bytes - self._file.tell()
        header = TraceHeader(component=component, pid=os.getpid(), epoch_ns=time.time_ns() - time.monotonic_ns())
        # The newline ends a line that a killed process left torn; an empty line is none.
        self._file.write(b"\n" + self._encoder.encode(header) + b"\n")

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        track: str = "main",
        args: Mapping[str, float | int | str] | None = None,
    ) -> None:
        """Record a span of the monotonic clock. Spans of one track must nest or follow each other."""
        span = Span(name, start_ns, end_ns - start_ns, track, dict(args) if args else {})
        with self._lock:
            self._spans.append(span)
            due = len(self._spans) >= FLUSH_SPANS or end_ns - self._flushed_ns >= FLUSH_NS
        if due:
            self._flushed_ns = end_ns
            self.flush()

    @contextlib.contextmanager
    def span(self, name: str, track: str = "main", **args: float | int | str) -> Iterator[None]:
        """Record what the block takes, also when it raises."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(name, start, time.monotonic_ns(), track, args)

    def flush(self) -> None:
        """Hand the recorded spans to the operating system."""
        with self._lock:
            spans, self._spans = self._spans, []
            lines = self._encoder.encode_lines(spans)
            if len(lines) > self._room:
                self.dropped += len(spans)
                return
            self._room -= len(lines)
            self._write(lines, len(spans))

    def _write(self, lines: bytes, num_spans: int) -> None:
        """Spans tell of a run: where the disk is full they are dropped, and the run goes on."""
        try:
            # A newline ends what a full disk left torn.
            written = self._file.write(b"\n" * self._torn + lines)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            written = 0
        self._torn = written < len(lines)
        if self._torn:
            self.dropped += num_spans

    def close(self) -> None:
        self.flush()
        if self.dropped:
            full = Span(f"trace full: {self.dropped} spans dropped", time.monotonic_ns(), 0)
            self._write(self._encoder.encode(full) + b"\n", 0)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StepTimer:
    """The time ledger of a loop that runs in steps. One thread uses it.

    Example:
        timer = StepTimer(clock, phases=("wait", "optimizer"))
        while True:
            with timer.phase("wait"):
                ...
            metrics.write({"step": step, **timer.finish()})
    """

    def __init__(self, clock: Clock, phases: Sequence[str] = (), trace: TraceWriter | None = None) -> None:
        """`phases` are reported as 0.0 when a step did not enter them. Spans go to `trace` if there is
        one."""
        self._clock = clock
        self._expected = tuple(phases)
        self._trace = trace
        self._open: list[str] = []
        self._spent: dict[str, int] = {}
        self._mark = self._now()
        self._entered = 0
        self.last = "other"
        """The phase that was entered last, also when an error has left it."""

    @property
    def now_in(self) -> tuple[str, int]:
        """(innermost open phase or "other", phases entered so far), for who looks from elsewhere whether it gets on."""
        name = next(reversed(tuple(self._open)), "other")
        return name, self._entered

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under `name`; time in a phase inside it counts there and not here."""
        if name in RESERVED:
            raise ValueError(f"a phase cannot be called {name!r}: the ledger itself reports time/{name}")
        start = self._charge()
        self._open.append(name)
        self._entered += 1
        self.last = name
        try:
            yield
        finally:
            end = self._charge()
            self._open.pop()
            if self._trace is not None:
                self._trace.add(name, start, end)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count `seconds` of what phase `source` took in this step under `target` instead: for a part that times
        itself. Never more than `source` took."""
        ns = min(round(seconds * 1e9), self._spent.get(source, 0))
        self._spent[source] = self._spent.get(source, 0) - ns
        self._spent[target] = self._spent.get(target, 0) + ns

    def finish(self) -> dict[str, float]:
        """Close the step and begin the next: seconds as `time/<phase>`, `time/other` and their sum
        `time/step`.

        Raises ValueError inside an open phase, since its time is not known yet.
        """
        if self._open:
            raise ValueError(f"the step cannot finish inside phase {self._open[-1]!r}")
        end = self._charge()
        spent = {**dict.fromkeys((*self._expected, "other"), 0), **self._spent}
        total = sum(spent.values())
        if self._trace is not None:
            self._trace.add("step", end - total, end)
        self._spent = {}
        return {f"time/{name}": ns / 1e9 for name, ns in (*spent.items(), ("step", total))}

    def _charge(self) -> int:
        """Give the time since the last mark to the innermost open phase, and move the mark. Returns now."""
        now = self._now()
        name = self._open[-1] if self._open else "other"
        self._spent[name] = self._spent.get(name, 0) + now - self._mark
        self._mark = now
        return now

    def _now(self) -> int:
        return round(self._clock.now() * 1e9)
