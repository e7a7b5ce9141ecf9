"""The spans of all components as one Chrome trace, which Perfetto and chrome://tracing open.

Guarantees: memory does not grow with the traces; lines that a killed process left torn are skipped and
counted under `otherData`. Processes of several machines stand on one time line as well as their wall clocks
agree.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from streamrl.observability.timeline import Span, TraceHeader


def merge_traces(files: Sequence[Path], out_json: Path) -> int:
    """Write `out_json`, atomically, from the files that `TraceWriter` made; returns the number of spans.

    A process of the picture is one writer: its name is the component's, its rows are the tracks. Times start
    at 0 with the earliest span.
    """
    base = min((epoch + span.start_ns for _, epoch, span in _spans(files, _Count())), default=0)
    fresh = out_json.with_name(out_json.name + ".tmp")
    with fresh.open("wb") as out:
        count = _write(files, base, out)
    fresh.replace(out_json)
    return count


class _Count:
    def __init__(self) -> None:
        self.unreadable = 0


def _write(files: Sequence[Path], base: int, out: BinaryIO) -> int:
    encode = msgspec.json.Encoder().encode
    tracks: dict[tuple[int, str], int] = {}
    processes: set[int] = set()
    skipped, count = _Count(), 0
    out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    for (process, header), epoch, span in _spans(files, skipped):
        events = []
        if process not in processes:
            processes.add(process)
            events.append(_name("process_name", process, 0, f"{header.component} (pid {header.pid})"))
        if (process, span.track) not in tracks:
            tracks[process, span.track] = len(tracks) + 1
            events.append(_name("thread_name", process, tracks[process, span.track], span.track))
        events.append(_event(span, process, tracks[process, span.track], epoch - base))
        out.write(b"".join((b",\n" if count or i else b"") + encode(event) for i, event in enumerate(events)))
        count += 1
    out.write(b'\n],"otherData":' + encode({"unreadable_lines": skipped.unreadable}) + b"}\n")
    return count


def _spans(files: Sequence[Path], skipped: _Count) -> Iterator[tuple[tuple[int, TraceHeader], int, Span]]:
    """((number of the writer, its header), its epoch in ns, span) of every readable line under a header."""
    process = 0
    for path in files:
        header: TraceHeader | None = None
        with path.open("rb") as lines:
            for line in lines:
                if line == b"\n":
                    continue
                record = decode_line(line)
                if isinstance(record, TraceHeader):
                    header, process = record, process + 1
                elif record is None or header is None:
                    skipped.unreadable += 1
                else:
                    yield (process, header), header.epoch_ns, record


def decode_line(line: bytes) -> Span | TraceHeader | None:
    """A line of a `TraceWriter`'s file; None for one that is torn."""
    try:
        if line.startswith(b"{"):
            return msgspec.json.decode(line, type=TraceHeader)
        return msgspec.json.decode(line, type=Span)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _event(span: Span, process: int, track: int, shift_ns: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "pid": process,
        "tid": track,
        "ts": (span.start_ns + shift_ns) / 1000,
        "dur": span.duration_ns / 1000,
        "args": span.args,
    }


def _name(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}
