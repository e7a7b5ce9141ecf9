"""Recorded spans reach a collector by OTLP over HTTP: each once, below the one around it, of its part of the run."""

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.repository import TESTS

from streamrl.observability.timeline import Span

TRACE = TESTS / "support/trackers/trace"


class Collector:
    """Takes requests, and answers each with `code`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.code = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.code)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """(attributes of its resource, span) of all that was taken."""
        return [
            ({item.key: item.value.string_value for item in resource.resource.attributes}, span)
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    one = Collector()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


@pytest.fixture
def traced(tmp_path: Path) -> dict[str, list[Span]]:
    """The recorded spans, by part, in the run's folder."""
    shutil.copytree(TRACE, tmp_path / "runs/small/logs/trace")
    return {
        path.stem: [msgspec.json.decode(line, type=Span) for line in path.read_bytes().splitlines() if line[:1] == b"["]
        for path in TRACE.glob("*.jsonl")
    }


def test_each_recorded_span_is_taken_once_with_its_times_and_its_part(
    launch: Any, collector: Collector, traced: dict[str, list[Span]]
) -> None:
    status = launch("otel")["otel"]
    assert (status["state"], status["where"]) == ("finished", collector.url)
    taken = sorted((resource["service.instance.id"], span.name, duration(span)) for resource, span in collector.spans())
    assert taken == sorted((part, one.name, one.duration_ns) for part, spans in traced.items() for one in spans)
    (names,) = {(resource["service.name"], resource["streamrl.run_id"]) for resource, _ in collector.spans()}
    assert names == ("streamrl", "0123456789ab")


@pytest.mark.usefixtures("traced")
def test_the_phases_of_a_step_are_below_it_in_one_trace(launch: Any, collector: Collector) -> None:
    launch("otel")
    spans = [span for resource, span in collector.spans() if resource["service.instance.id"] == "learner-0"]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    steps = [span for span in spans if span.name == "step"]
    assert len(steps) == 8
    assert {span.parent_span_id for span in steps} == {b""}
    waits = [span for span in spans if span.name == "wait"]
    assert len(waits) == 8
    for span in waits:
        around = by_id[span.parent_span_id]
        assert around.trace_id == span.trace_id
        assert around.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= around.end_time_unix_nano


@pytest.mark.usefixtures("traced")
def test_spans_of_a_launch_before_are_not_sent_again(launch: Any, collector: Collector) -> None:
    launch("otel", started_ns=2**62)
    assert collector.spans() == []


@pytest.mark.usefixtures("traced")
def test_a_collector_that_refuses_is_told_and_the_tracker_goes_on(launch: Any, collector: Collector) -> None:
    collector.code = 400
    with pytest.raises(AssertionError, match=r"could not take what it was told.*did not take"):
        launch("otel")


def duration(span: Any) -> int:
    return int(span.end_time_unix_nano - span.start_time_unix_nano)
