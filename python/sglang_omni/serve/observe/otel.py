"""Spans of requests for an OpenTelemetry collector. Imported only if traces are exported.

A request's span is made when it comes, so that its trace goes on from the caller's ``traceparent``. Its
children, the stages and their steps, are made of their timeline once all is reported.
"""

from __future__ import annotations

import asyncio
import logging

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni import __version__
from sglang_omni.serve.coordinator import AdminCoordinator
from sglang_omni.serve.front.request_ids import RequestName
from sglang_omni.serve.observe.history import Generation, History
from sglang_omni.serve.observe.timeline import Slice, Timeline, timelines, unix

logger = logging.getLogger(__name__)

# Stages report what they did within this time after the answer.
_REPORTS_S = 0.1
# Waits and steps of a stage that have spans of their own.
_MOST_INNER = 6
# GenAI's names of what is done, by task.
_OPERATIONS = {"chat": "chat", "completion": "text_completion"}


class SpanExport:
    """Sends spans to a collector, in batches and by a thread of its own.

    Args:
        endpoint: The URL for traces, as OTLP over HTTP; None for that of the ``OTEL_`` environment variables,
            which say everything else, too.
    """

    def __init__(self, endpoint: str | None) -> None:
        resource = Resource.create({SERVICE_VERSION: __version__})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "sglang-omni"}))
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self.tracer: Tracer = self._provider.get_tracer("sglang_omni", __version__)

    def close(self) -> None:
        """Sends what is left. Blocks for as long as the collector takes, at most some seconds."""
        self._provider.shutdown()


class Traced:
    """Gives every request that acts a span. Behind ``RequestIds``, which names the request."""

    def __init__(
        self, app: ASGIApp, *, tracer: Tracer, history: History, coordinator: AdminCoordinator
    ) -> None:
        self.app = app
        self.tracer = tracer
        self.history = history
        self.coordinator = coordinator
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        context = self._propagator.extract(dict(Headers(scope=scope).items()))
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        span = self.tracer.start_span(
            f"{scope['method']} {scope['path']}", context, SpanKind.SERVER, attributes
        )
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched if span.is_recording() else send)
        finally:
            if span.is_recording():
                if status:
                    span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_status(Status(StatusCode.ERROR))
                span.set_attribute("http.route", getattr(scope.get("route"), "path", "other"))
                self._end(span, scope["state"]["request_name"])

    def _end(self, span: Span, name: RequestName) -> None:
        span.set_attribute("sglang_omni.request_id", name.id)
        generations = self.history.of_parts(name.parts, name.owner)
        _describe(span, generations)
        span.end()
        if generations:
            loop = asyncio.get_running_loop()
            loop.call_later(_REPORTS_S, self._tell, span, generations)

    def _tell(self, span: Span, generations: list[Generation]) -> None:
        try:
            for timeline in timelines(generations, self.coordinator):
                _stages(self.tracer, span, timeline)
        except Exception:
            logger.exception("The spans of a request's stages were lost")


def _describe(span: Span, generations: list[Generation]) -> None:
    """Attributes by the semantic conventions for generative AI, and vLLM's for latencies, in seconds."""
    if not generations:
        return
    first = generations[0]
    operation = _OPERATIONS.get(first.task, first.task)
    span.set_attribute("gen_ai.operation.name", operation)
    span.set_attribute("gen_ai.request.id", first.request_id)
    if first.model:
        span.set_attribute("gen_ai.request.model", first.model)
    for name, value in first.parameters.items():
        if value is not None:
            span.set_attribute(f"gen_ai.request.{name}", value)
    if len(generations) > 1:
        span.set_attribute("gen_ai.request.choice.count", len(generations))
    usages = [each.usage for each in generations if each.usage is not None]
    if usages:
        span.set_attribute("gen_ai.usage.input_tokens", sum(u.prompt_tokens or 0 for u in usages))
        span.set_attribute("gen_ai.usage.output_tokens", sum(u.completion_tokens or 0 for u in usages))
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", sum(u.cached_tokens or 0 for u in usages))
    reasons = [each.finish_reason for each in generations if each.finish_reason is not None]
    span.set_attribute("gen_ai.response.finish_reasons", reasons)
    tokens = [each.first_token - each.arrived for each in generations if each.first_token is not None]
    if tokens:
        span.set_attribute("gen_ai.latency.time_to_first_token", min(tokens))
    ended = [each.ended - each.arrived for each in generations if each.ended is not None]
    if ended:
        span.set_attribute("gen_ai.latency.e2e", max(ended))
    span.set_attribute("gen_ai.latency.time_in_queue", first.began - first.arrived)
    for each in generations:
        if each.first_token is not None:
            span.add_event("first token", timestamp=_nanos(unix(each.first_token)))


def _stages(tracer: Tracer, parent: Span, timeline: Timeline) -> None:
    request_id = timeline.generation.request_id
    _span(tracer, parent, timeline.server.inner[-1], {"sglang_omni.request_id": request_id})
    for visit in timeline.visits:
        visit.slice.inner = _brief(visit.slice.inner)
        _span(tracer, parent, visit.slice, {"sglang_omni.request_id": request_id})


def _brief(pieces: list[Slice]) -> list[Slice]:
    """The first slices, and the others as one: a collector keeps every span of every request."""
    kept, rest = pieces[:_MOST_INNER], pieces[_MOST_INNER:]
    if rest:
        steps = sum(piece.attributes.get("steps", 1) for piece in rest)
        kept.append(Slice(f"{steps} steps", rest[0].start, rest[-1].end, {"steps": steps}))
    return kept


def _span(tracer: Tracer, parent: Span, piece: Slice, also: dict[str, str]) -> None:
    attributes = {f"sglang_omni.{key}": value for key, value in piece.attributes.items()} | also
    span = tracer.start_span(
        piece.name,
        trace.set_span_in_context(parent),
        attributes=attributes,
        start_time=_nanos(piece.start),
    )
    for inner in piece.inner:
        _span(tracer, span, inner, {})
    span.end(_nanos(piece.end))


def _nanos(moment: float) -> int:
    return int(moment * 1e9)
