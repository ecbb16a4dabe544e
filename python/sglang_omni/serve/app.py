"""The web application that serves a pipeline over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware

from sglang_omni import __version__
from sglang_omni.client import Client
from sglang_omni.config.draw.graph import PipelineGraph
from sglang_omni.serve.front import errors
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.admission import Admission, AdmissionLimits
from sglang_omni.serve.front.auth import Guard
from sglang_omni.serve.front.bodies import JsonBodies, JsonLimits
from sglang_omni.serve.front.limits import BodyLimits
from sglang_omni.serve.front.middleware import AdmissionMiddleware
from sglang_omni.serve.front.origins import cross_origin
from sglang_omni.serve.front.request_ids import RequestIds
from sglang_omni.serve.front.route_hints import RouteHints
from sglang_omni.serve.kept_voices import KeptVoices
from sglang_omni.serve.realtime.ice import NO_ICE_SERVERS, IceServers
from sglang_omni.serve.routes.admin import admin_routes
from sglang_omni.serve.routes.chat import chat_routes
from sglang_omni.serve.routes.completions import completion_routes
from sglang_omni.serve.routes.embeddings import embedding_routes
from sglang_omni.serve.routes.generate import generate_routes
from sglang_omni.serve.routes.page import page_routes
from sglang_omni.serve.routes.pipeline_view import inside_routes
from sglang_omni.serve.routes.profile import profile_routes
from sglang_omni.serve.routes.realtime import realtime_routes
from sglang_omni.serve.routes.realtime_calls import realtime_call_routes
from sglang_omni.serve.routes.responses import response_routes
from sglang_omni.serve.routes.speech import speech_routes
from sglang_omni.serve.routes.speech_batch import speech_batch_routes
from sglang_omni.serve.routes.speech_stream import speech_stream_routes
from sglang_omni.serve.routes.tokenize import tokenize_routes
from sglang_omni.serve.routes.transcription_stream import transcription_stream_routes
from sglang_omni.serve.routes.transcriptions import transcription_routes
from sglang_omni.serve.routes.voices import voice_routes
from sglang_omni.serve.state import AppState, Capabilities

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

MakeRoutes = Callable[[AppState], APIRouter]

# What costs time for each token or byte. API workers serve it themselves.
GENERATION_ROUTES: Sequence[MakeRoutes] = (
    chat_routes,
    completion_routes,
    speech_routes,
    transcription_routes,
    generate_routes,
)
_OTHER_ROUTES: Sequence[MakeRoutes] = (
    speech_batch_routes,
    speech_stream_routes,
    transcription_stream_routes,
    voice_routes,
    response_routes,
    tokenize_routes,
    realtime_routes,
    realtime_call_routes,
    embedding_routes,
    admin_routes,
    profile_routes,
    inside_routes,
    page_routes,
)


def create_app(
    client: Client,
    *,
    model_name: str | None = None,
    aliases: Sequence[str] = (),
    capabilities: Capabilities | None = None,
    max_body_size: int = BodyLimits.max_body_size,
    max_json_size: int = BodyLimits.max_json_size,
    request_timeout: float | None = None,
    limits: AdmissionLimits | None = None,
    info: Callable[[], dict[str, Any]] = dict,
    access: Access | None = None,
    tracer: Tracer | None = None,
    graph: PipelineGraph | None = None,
    strict_params: bool = False,
    ice_servers: IceServers = NO_ICE_SERVERS,
    voices: KeptVoices | None = None,
) -> FastAPI:
    """The OpenAI-compatible API over a client.

    Args:
        client: Usually over the coordinator of this process, which then reports load and flushes caches.
        model_name: The name of the one model served; None accepts any name.
        aliases: Further names of it.
        capabilities: What the pipeline can do; other requests are refused with a 400.
        max_body_size: Bytes of a body; larger ones are refused with a 413.
        max_json_size: Bytes of a JSON body apart from its media; larger ones are refused likewise.
        request_timeout: Seconds after which a request is aborted and answered with a 504; None: never.
        limits: How many requests run and wait; by default any number runs.
        info: Returns further fields of ``/get_server_info``.
        access: Keys, host names and web pages' origins; by default no key is asked for.
        tracer: Makes a span of each request, of its stages and their steps; None: no spans.
        graph: The pipeline's stages and edges, which the page draws; None: it has nothing to draw.
        strict_params: Refuse what answers would else only warn of.
        ice_servers: Help clients of other networks to reach calls over WebRTC.
        voices: Keeps those that clients upload; None: none are taken.
    """
    server = AppState(
        client=client,
        model_name=model_name,
        aliases=aliases,
        capabilities=capabilities or Capabilities(),
        admission=Admission(limits, max_body_size=max_body_size),
        info=info,
        bodies=JsonBodies(JsonLimits(max_json_size)),
        request_timeout=request_timeout,
        traces_steps=tracer is not None,
        graph=graph,
        strict_params=strict_params,
        ice_servers=ice_servers,
        voices=voices,
    )
    routers = [make(server) for make in (*GENERATION_ROUTES, *_OTHER_ROUTES)]
    return app_of(server, access or Access(), routers, max_body_size, tracer=tracer)


def app_of(
    server: AppState,
    access: Access,
    routers: Iterable[APIRouter],
    max_body_size: int,
    *,
    tracer: Tracer | None = None,
) -> FastAPI:
    """The application with these routes, behind what every request passes."""
    middleware = [
        # First, since a browser asks without a key whether a page may send one.
        *cross_origin(access.allowed_origins),
        Middleware(RequestIds, running=server.running),
        *_traced(server, tracer),
        Middleware(
            AdmissionMiddleware,
            guard=Guard(access, server.client_secrets),
            admission=server.admission,
            metrics=server.metrics,
            max_body_size=max_body_size,
            websockets=server.websockets,
        ),
    ]
    # Without FastAPI's pages, which load scripts from other sites; /openapi.json stays.
    app = FastAPI(
        title="sglang-omni",
        version=__version__,
        middleware=middleware,
        docs_url=None,
        redoc_url=None,
        responses={"default": errors.TOLD},
    )
    app.state.server = server
    hints = RouteHints()
    for router in routers:
        app.include_router(router)
        hints.add(router)
    errors.install(app, hints)
    return app


def _traced(server: AppState, tracer: Tracer | None) -> list[Middleware]:
    if tracer is None:
        return []
    from sglang_omni.serve.observe.otel import Traced

    return [Middleware(Traced, tracer=tracer, history=server.history, coordinator=server.coordinator)]
