"""An OTLP/HTTP collector on loopback: decodes the protobuf that exporters send, and lets tests wait for spans."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class CollectedSpan:
    """A span as the collector received it. Ids are hexadecimal; a root has no parent_id."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    service: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]
    is_error: bool


class TraceCollector:
    """Collects spans. `wait` returns as soon as spans satisfy a condition."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[CollectedSpan] = []
        self.endpoint = ""
        self.requests: list[tuple[str, dict[str, str]]] = []  # of other paths, with their headers

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._changed:
            return list(self._spans)

    def environment(self) -> dict[str, str]:
        """The variables that make a process export its spans here at once."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def wait(self, wanted: Callable[[CollectedSpan], bool], count: int = 1) -> list[CollectedSpan]:
        """Return the spans that match, once there are `count` of them."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while len(found := [span for span in self._spans if wanted(span)]) < count:
                left = deadline - time.monotonic()
                names = sorted({span.name for span in self._spans})
                assert left > 0, f"{len(found)} of {count} spans after {WAIT_SECONDS:g} s; there are {names}"
                self._changed.wait(left)
        return found

    def receive(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for group in request.resource_spans:
                service = _attributes(group.resource.attributes).get("service.name", "")
                for scope in group.scope_spans:
                    self._spans += [_read(span, service) for span in scope.spans]
            self._changed.notify_all()


def _read(span: Any, service: str) -> CollectedSpan:
    return CollectedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        service=service,
        attributes=_attributes(span.attributes),
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        is_error=span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")


@contextmanager
def collect_traces() -> Iterator[TraceCollector]:
    """Serve a collector. Requests to other paths than /v1/traces get 200 and are recorded, as of an HTTP target."""
    collector = TraceCollector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path == "/v1/traces":
                zipped = self.headers.get("content-encoding") == "gzip"
                collector.receive(gzip.decompress(body) if zipped else body)
            else:
                collector.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
