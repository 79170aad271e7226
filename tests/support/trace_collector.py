"""A server that receives traces as an OpenTelemetry collector does, over OTLP/HTTP, and keeps their spans."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from lethe import tracing
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, str | int]
    events: tuple[str, ...]
    error: str  # the description of its status; "": none
    # By time.time, as those of the events.
    began: float
    ended: float
    event_times: tuple[float, ...]


@dataclass
class TraceCollector:
    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)

    def named(self, name: str) -> ReceivedSpan:
        (found,) = [s for s in self.spans if s.name == name]
        return found

    def names(self) -> list[str]:
        return sorted(s.name for s in self.spans)


@contextmanager
def running() -> Iterator[TraceCollector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.spans += spans_of(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = TraceCollector(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def traced(service: str) -> Iterator[TraceCollector]:
    """This process sends its traces to a collector during the block. `tracing.stop()` sends what is left."""
    with running() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "_provider", None)
        patch.setenv(tracing.ENDPOINT, collector.url)
        tracing.start(service)
        yield collector


def spans_of(body: bytes) -> Iterator[ReceivedSpan]:
    """The spans of an ExportTraceServiceRequest."""
    for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _values(of_process.resource.attributes)["service.name"]
        for scope in of_process.scope_spans:
            for s in scope.spans:
                yield ReceivedSpan(
                    str(service),
                    s.name,
                    s.trace_id.hex(),
                    s.span_id.hex(),
                    s.parent_span_id.hex(),
                    _values(s.attributes),
                    tuple(e.name for e in s.events),
                    s.status.message,
                    s.start_time_unix_nano / 1e9,
                    s.end_time_unix_nano / 1e9,
                    tuple(e.time_unix_nano / 1e9 for e in s.events),
                )


def _values(attributes: Any) -> dict[str, str | int]:
    return {a.key: a.value.string_value if a.value.HasField("string_value") else a.value.int_value for a in attributes}
