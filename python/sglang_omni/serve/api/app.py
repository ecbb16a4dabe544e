"""The web application in front of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from sglang_omni import __version__
from sglang_omni.client import Client
from sglang_omni.serve.api import errors
from sglang_omni.serve.api.admin import admin_routes
from sglang_omni.serve.api.admission import Admission, AdmissionLimits, Gate
from sglang_omni.serve.api.auth import Guard
from sglang_omni.serve.api.bodies import JsonBodies, JsonLimits
from sglang_omni.serve.api.chat import chat_routes
from sglang_omni.serve.api.completions import completion_routes
from sglang_omni.serve.api.generate import generate_routes
from sglang_omni.serve.api.keys import Access
from sglang_omni.serve.api.limits import BodyLimits
from sglang_omni.serve.api.middleware import BodyLimit, Count
from sglang_omni.serve.api.page import page_routes
from sglang_omni.serve.api.request_ids import RequestIds
from sglang_omni.serve.api.speech import speech_routes
from sglang_omni.serve.api.state import Capabilities, Server
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
        client: Usually a ``Client`` over the coordinator of this process.
        model_name: The one model served, which requests name; None takes any name.
        capabilities: What the pipeline can do, for refusing the rest with a 400.
        max_body_size: Bytes; longer bodies are answered with a 413.
        max_json_size: Bytes of a JSON body apart from its media; likewise.
        request_timeout: Seconds after which a request is aborted and answered with a 504; None: never.
        limits: How many requests run and wait; by default any number runs.
        info: Gives further fields of ``/get_server_info``, when asked.
        access: The keys that are asked for; by default none.
    """
    server = Server(
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
    # Without FastAPI's own pages, which load their scripts from elsewhere; /openapi.json is there.
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
        admin_routes,
        page_routes,
    ):
        app.include_router(routes(server))
    errors.install(app)
    return app
