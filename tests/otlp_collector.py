"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, protobuf or JSON, and keeps the spans."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class KeptSpan:
    """A span as a collector sees it; times in Unix nanoseconds, ids as hexadecimal digits."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any] = field(default_factory=dict)
    kind: int = 0
    state: str = ""


class Collector:
    """
    Attributes:
        url: Where it takes traces.
        spans: What came.
        paths: The paths that were asked for, with the headers of each request.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[KeptSpan] = []
        self.paths: list[tuple[str, dict[str, str]]] = []

    def of_trace(self, trace_id: str) -> list[KeptSpan]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]

    def take(self, message: ExportTraceServiceRequest) -> None:
        for resource in message.resource_spans:
            reported = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {a.key: next(iter(MessageToDict(a.value).values())) for a in span.attributes}
                    self.spans.append(
                        KeptSpan(
                            reported["service.name"],
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            attributes,
                            span.kind,
                            span.trace_state,
                        )
                    )


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            message = ExportTraceServiceRequest()
            if self.headers["content-type"] == "application/json":
                # OTLP's JSON has ids in hexadecimal, where protobuf's own has base64.
                ParseDict(_base64_ids(json.loads(body)), message)
            else:
                message.ParseFromString(body)
            collector.take(message)
            self.send_response(200)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Not on standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_base64_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else _base64_ids(each)
        for key, each in value.items()
    }
