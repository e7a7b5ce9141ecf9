"""OpenTelemetry: the spans of the Chrome trace by OTLP over HTTP, to where `OTEL_EXPORTER_OTLP_ENDPOINT` says.

    <run>/trace/*.jsonl  --read on with each step-->  trees of each track  --once they are whole-->  collector

A span that no other is around begins a trace of its own: a step of the learner is one, with its phases inside. The
service is `streamrl`; its instance is the part, with the run's name and id. Numbers are not sent: a Prometheus server
has them from `/metrics`.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from streamrl.observability.chrome_trace import decode_line
from streamrl.observability.timeline import Span, TraceHeader
from streamrl.observability.trackers.base import Cell, Ending, TrackedRun
from streamrl.observability.trackers.span_trees import TrackTrees, Tree, walk

TRACE_FOLDER = "logs/trace"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
USUAL_ENDPOINT = "http://localhost:4318"
"""OpenTelemetry's own."""
MOST_AT_ONCE = 512
"""Spans of one request."""


class Follower:
    """What a folder of trace files has that was not read yet: whole lines, and of this launch."""

    def __init__(self, folder: Path, since_ns: int) -> None:
        self._folder = folder
        self._since_ns = since_ns
        self._read: dict[Path, int] = {}
        self._headers: dict[Path, TraceHeader] = {}

    def read(self) -> Iterator[tuple[TraceHeader, Span]]:
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in text[:whole].splitlines():
                yield from self._of_line(path, line)

    def _of_line(self, path: Path, line: bytes) -> Iterator[tuple[TraceHeader, Span]]:
        record = decode_line(line) if line else None
        if isinstance(record, TraceHeader):
            self._headers[path] = record
        elif record is not None and path in self._headers:
            header = self._headers[path]
            if header.epoch_ns + record.start_ns >= self._since_ns:
                yield header, record


class Track(NamedTuple):
    """A row of the picture."""

    component: str
    pid: int
    epoch_ns: int
    name: str


class OtelTracker:
    """See the module."""

    rewinds: ClassVar[bool] = True

    def __init__(self, run: TrackedRun) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk import resources
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._api, self._resources = trace, resources
        self._make_span, self._success = ReadableSpan, SpanExportResult.SUCCESS
        self._exporter = OTLPSpanExporter()
        self._run = run
        self._follower = Follower(Path(run.folder) / TRACE_FOLDER, run.started_ns)
        self._tracks: dict[Track, TrackTrees] = {}
        self._resource_of: dict[int, Any] = {}
        self.last_step = -1
        self.where = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), USUAL_ENDPOINT)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """A step is done: what was recorded meanwhile goes out."""
        self._read()
        self._send((track, tree) for track, trees in self._tracks.items() for tree in trees.take_old())

    def forget_after(self, step: int) -> None:
        """Nothing: what happened happened."""

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Nothing: rows are no spans."""

    def finish(self, ending: Ending) -> None:
        self._read()
        self._send((track, tree) for track, trees in self._tracks.items() for tree in trees.take_all())
        self._exporter.shutdown()

    def _read(self) -> None:
        for header, span in self._follower.read():
            track = Track(header.component, header.pid, header.epoch_ns, span.track)
            self._tracks.setdefault(track, TrackTrees()).add(span)

    def _send(self, trees: Iterable[tuple[Track, Tree]]) -> None:
        batch: list[Any] = []
        for track, tree in trees:
            batch += self._spans(track, tree)
            while len(batch) >= MOST_AT_ONCE:
                self._export(batch[:MOST_AT_ONCE])
                batch = batch[MOST_AT_ONCE:]
        if batch:
            self._export(batch)

    def _export(self, batch: Sequence[Any]) -> None:
        result = self._exporter.export(batch)
        if result is not self._success:
            raise ConnectionError(f"{self.where} did not take {len(batch)} spans: {result}")

    def _spans(self, track: Track, tree: Tree) -> Iterator[Any]:
        trace_id = _number(16, self._run.run_id, *track, tree.span.start_ns, tree.span.name)
        for inner, outer in walk(tree):
            context = self._context(trace_id, track, inner)
            around = None if outer is None else self._context(trace_id, track, outer)
            begin = track.epoch_ns + inner.span.start_ns
            yield self._make_span(
                name=inner.span.name,
                context=context,
                parent=around,
                resource=self._resource(track),
                attributes={"streamrl.track": track.name, **inner.span.args},
                kind=self._api.SpanKind.INTERNAL,
                start_time=begin,
                end_time=begin + inner.span.duration_ns,
            )

    def _context(self, trace_id: int, track: Track, tree: Tree) -> Any:
        span_id = _number(8, *track, tree.span.start_ns, tree.span.duration_ns, tree.span.name)
        sampled = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)

    def _resource(self, track: Track) -> Any:
        if track.pid not in self._resource_of:
            self._resource_of[track.pid] = self._resources.Resource.create(
                {
                    "service.name": "streamrl",
                    "service.instance.id": track.component,
                    "streamrl.run": self._run.name,
                    "streamrl.run_id": self._run.run_id,
                    "streamrl.launch": self._run.incarnation,
                    "process.pid": track.pid,
                }
            )
        return self._resource_of[track.pid]


def _number(num_bytes: int, *parts: object) -> int:
    """The same for the same parts, and never 0, which stands for none."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=num_bytes).digest()
    return int.from_bytes(digest, "big") | 1
