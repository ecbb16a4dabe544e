"""The web application that serves a pipeline over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from sglang_omni import __version__
from sglang_omni.client import Client
from sglang_omni.serve.api import errors
from sglang_omni.serve.api.access import Access
from sglang_omni.serve.api.admin import admin_routes
from sglang_omni.serve.api.admission import Admission, AdmissionLimits
from sglang_omni.serve.api.auth import Guard
from sglang_omni.serve.api.bodies import JsonBodies, JsonLimits
from sglang_omni.serve.api.chat import chat_routes
from sglang_omni.serve.api.completions import completion_routes
from sglang_omni.serve.api.embeddings import embedding_routes
from sglang_omni.serve.api.generate import generate_routes
from sglang_omni.serve.api.limits import BodyLimits
from sglang_omni.serve.api.middleware import BodyLimit, Count, Gate
from sglang_omni.serve.api.page import page_routes
from sglang_omni.serve.api.request_ids import RequestIds
from sglang_omni.serve.api.responses import response_routes
from sglang_omni.serve.api.speech import speech_routes
from sglang_omni.serve.api.state import AppState, Capabilities
from sglang_omni.serve.api.tokenize import tokenize_routes
from sglang_omni.serve.api.transcriptions import transcription_routes


def create_app(
    client: Client,
    *,
    model_name: str | None = None,
    capabilities: Capabilities | None = None,
    max_body_size: int = BodyLimits.max_body_size,
    max_json_size: int = BodyLimits.max_json_size,
    request_timeout: float | None = None,
    limits: AdmissionLimits | None = None,
    info: Callable[[], dict[str, Any]] = dict,
    access: Access | None = None,
) -> FastAPI:
    """The OpenAI-compatible API over a client.

    Args:
        client: Usually over the coordinator of this process, which then reports load and flushes caches.
        model_name: The name of the one model served; None accepts any name.
        capabilities: What the pipeline can do; other requests are refused with a 400.
        max_body_size: Bytes of a body; larger ones are refused with a 413.
        max_json_size: Bytes of a JSON body apart from its media; larger ones are refused likewise.
        request_timeout: Seconds after which a request is aborted and answered with a 504; None: never.
        limits: How many requests run and wait; by default any number runs.
        info: Returns further fields of ``/get_server_info``.
        access: Keys and host names; by default no key is asked for.
    """
    server = AppState(
        client=client,
        model_name=model_name,
        capabilities=capabilities or Capabilities(),
        admission=Admission(limits, max_body_size=max_body_size),
        info=info,
        bodies=JsonBodies(JsonLimits(max_json_size)),
        request_timeout=request_timeout,
    )
    middleware = [
        Middleware(RequestIds, running=server.running),
        Middleware(Count, metrics=server.metrics),
        Middleware(Guard, access=access or Access()),
        Middleware(BodyLimit, max_bytes=max_body_size),
        Middleware(Gate, admission=server.admission),
    ]
    # Without FastAPI's pages, which load scripts from other sites; /openapi.json stays.
    app = FastAPI(
        title="sglang-omni", version=__version__, middleware=middleware, docs_url=None, redoc_url=None
    )
    app.state.server = server
    for routes in (
        chat_routes,
        completion_routes,
        speech_routes,
        transcription_routes,
        generate_routes,
        response_routes,
        tokenize_routes,
        embedding_routes,
        admin_routes,
        page_routes,
    ):
        app.include_router(routes(server))
    errors.install(app)
    return app
