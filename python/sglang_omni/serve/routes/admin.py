"""Routes for operators and probes: health, models, load, metrics, aborts and the flushing of caches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import Metric

from sglang_omni.generation.audio import encode_wav
from sglang_omni.generation.request import GenerateRequest, SamplingParams, SoundStream
from sglang_omni.generation.request_id import new_request_id
from sglang_omni.generation.samples import Samples
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.errors import unavailable_headers
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.front.streaming import until_disconnect
from sglang_omni.serve.metrics import CONTENT_TYPE, family, stage_families
from sglang_omni.serve.models.admin import AbortRequest
from sglang_omni.serve.routes.documented import media
from sglang_omni.serve.state import AppState

logger = logging.getLogger(__name__)

# Lists the servers that are at an address: a router learns from it who keeps a response.
_SERVERS_HEADER = "x-sglang-omni-servers"
_PROBE_TIMEOUT = 20.0
# Half a second for a pipeline that only listens.
_SILENCE = encode_wav(np.zeros(8000, np.float32), 16_000)
# What a probe answers that is no error.
_REFUSES: dict[int | str, dict[str, Any]] = {503: {"description": "The server takes no requests"}}
# A router, which hands out a server's description, answers for all of its servers.
_BY_ROUTER = media("application/json")
_STATES = ("pending", "running", "completed", "failed", "aborted")


def admin_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    probing: asyncio.Task[None] | None = None

    @router.get("/health", responses=_REFUSES)
    async def health() -> JSONResponse:
        """True if the server takes requests."""
        state = {"running": False, **server.transport.health()}
        # New requests wait while a stage is restarted; if that takes long, they should go to another server.
        serves = state["running"] and not state.get("unserved_stages")
        if server.admission.closed is not None:
            serves, state["running"], state["error"] = False, False, server.admission.closed
        return JSONResponse(
            {"status": _status(server, state) if serves else "unhealthy", **state, **_limits(server)},
            status_code=200 if serves else 503,
            headers={
                _SERVERS_HEADER: server.responses.server,
                **({} if serves else unavailable_headers(ends=not state["running"])),
            },
        )

    @router.get("/ping", response_class=Response, responses=_REFUSES)
    @router.post("/ping", response_class=Response, responses=_REFUSES)
    async def ping() -> Response:
        """What SageMaker asks: the status of ``/health``, without its text."""
        return Response(status_code=(await health()).status_code)

    @router.get("/version")
    async def version() -> JSONResponse:
        """The version of this package."""
        from sglang_omni import __version__

        return JSONResponse({"version": __version__})

    @router.get("/health_generate")
    async def health_generate(request: Request) -> JSONResponse:
        """Check that a request succeeds: one token is generated, or one word spoken.

        The request needs no place, since a full server is healthy. Callers share one such request at a time.
        """
        nonlocal probing
        if probing is None or probing.done():
            probing = asyncio.ensure_future(_probe(server))
        await until_disconnect(request.receive, _outcome(probing))
        return JSONResponse({"status": "healthy"})

    @router.get("/v1/models")
    async def models() -> JSONResponse:
        """The served names, as OpenAI lists models."""
        return JSONResponse(
            {"object": "list", "data": [_model(server, name) for name in server.served_names]}
        )

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> JSONResponse:
        """One served name."""
        return JSONResponse(_model(server, server.check_model(name)))

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> JSONResponse:
        """What the pipeline can do: its tasks, modalities and voices."""
        abilities = server.capabilities
        return JSONResponse(
            {
                "model_path": _model_path(server),
                "served_model_name": server.served_name,
                "tasks": _sorted(abilities.tasks),
                "input_modalities": _sorted(abilities.input_modalities),
                "output_modalities": _sorted(abilities.output_modalities),
                "voices": _sorted(abilities.voices),
                "random_weights": abilities.random_weights,
                "is_generation": True,
            }
        )

    @router.get("/get_server_info")
    async def server_info() -> JSONResponse:
        """The config, and where things run."""
        from sglang_omni import __version__

        return JSONResponse(
            {
                **server.info(),
                "version": __version__,
                "served_model_name": server.served_name,
                "uptime_s": round(time.time() - server.started, 3),
                "health": server.transport.health(),
                "load": server.coordinator.get_load(),
            }
        )

    @router.get("/get_load")
    async def get_load() -> JSONResponse:
        """Requests by state. Routers balance by the number of running ones."""
        load = server.coordinator.get_load()
        waiting, running = load.get("pending", 0) + server.admission.waiting, load.get("running", 0)
        return JSONResponse({**load, "num_reqs": waiting + running, "num_waiting_reqs": waiting})

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics in Prometheus's text format."""
        return Response(server.metrics.render(_families(server)), media_type=CONTENT_TYPE)

    @router.post("/abort_request")
    async def abort_request(body: AbortRequest, request: Request) -> JSONResponse:
        """Stop a running request of the caller, and free what it holds.

        Its name is its id or that of its answer, such as ``chatcmpl-...``. An ``x-request-id`` that several
        requests have in common stops all of them. A request of another owner is treated as unknown.
        """
        request_id = body.request_id or body.rid
        if not request_id:
            raise RequestError(
                "request_id: is required", param="request_id", code="missing_required_parameter"
            )
        if body.rid not in (None, request_id):
            raise RequestError("rid and request_id differ; give one", param="rid", code="invalid_value")
        success, owner = False, owner_of(request)
        for each in server.running.meant_by(request_id, owner):
            if await server.transport.abort(each, owner=owner):
                logger.info("Request %s is aborted, as /abort_request asked", each)
                success = True
        return JSONResponse({"success": success, "request_id": request_id})

    @router.post("/flush_cache", response_class=PlainTextResponse, responses=_BY_ROUTER)
    async def flush_cache() -> Response:
        """Forget cached prefixes that no running request uses."""
        await server.coordinator.flush_cache()
        return PlainTextResponse("Cache flushed.\n")

    return router


async def _outcome(task: asyncio.Task[None]) -> None:
    """Wait for a task that others wait for too, without cancelling it."""
    await asyncio.shield(task)


async def _probe(server: AppState) -> None:
    tasks = server.capabilities.tasks
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
    metadata = {"probe": True}
    if tasks is None or "completion" in tasks:
        request = GenerateRequest(prompt="Hi", sampling=sampling, metadata=metadata, stream=False)
    elif "chat" in tasks:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
        request = GenerateRequest(messages=messages, sampling=sampling, metadata=metadata, stream=False)
    elif "speech" in tasks:
        request = GenerateRequest(prompt="Hi", metadata={"task": "speech"} | metadata, stream=False)
    elif tasks == {"duplex"}:
        # It answers as long as it hears: what ends at once is answered with nothing.
        sound = SoundStream(24_000, _no_sound())
        request = GenerateRequest(sound=sound, metadata={"task": "duplex"} | metadata, timeout=_PROBE_TIMEOUT)
        async with aclosing(server.transport.parts(request, f"health-{new_request_id()}")) as parts:
            async for _ in parts:
                pass
        return
    elif tasks:
        task = "transcription" if "transcription" in tasks else "translation"
        request = GenerateRequest(audio=_SILENCE, metadata={"task": task} | metadata, stream=False)
    else:
        # A text to speech model without its codec does none of the tasks.
        request = GenerateRequest(prompt={"text": "Hi"}, metadata=metadata, stream=False)
    request.timeout = _PROBE_TIMEOUT
    await server.transport.whole(request, f"health-{new_request_id()}")


def _status(server: AppState, state: dict[str, Any]) -> str:
    """The status of a server that takes requests, in one word."""
    if state.get("down_stages") or state.get("hung_stages"):
        return "degraded"
    return "busy" if server.admission.is_full else "healthy"


def _limits(server: AppState) -> dict[str, Any]:
    """The limits on requests, if there are any; a fleet's router takes the sum of its server replicas'."""
    limits = server.admission.limits
    return {"limits": limits.as_dict()} if limits.max_running is not None else {}


def _families(server: AppState) -> Iterable[Metric]:
    coordinator, admission = server.coordinator, server.admission
    load, stages = coordinator.get_load(), coordinator.stage_load()
    state = server.transport.health()
    yield family("up", "Whether requests are taken.", bool(state.get("running")))
    yield family(
        "pipeline_requests",
        "Requests by state: now for pending and running, since the start for the others.",
        {name: load[name] for name in _STATES if name in load},
        label="state",
    )
    yield family("stage_requests", "Requests each stage holds now.", stages, label="stage")
    yield family("stages_down", "Stages that are being restarted.", len(state.get("down_stages") or ()))
    waiting = load.get("pending", 0) + admission.waiting
    yield family("num_requests_running", "Requests in the pipeline.", load.get("running", 0))
    yield family("num_requests_waiting", "Requests that wait to enter the pipeline.", waiting)
    yield family("requests_running", "Requests that have a place.", admission.running)
    yield family("requests_waiting", "Requests that wait for a place.", admission.waiting)
    yield family("realtime_sessions", "Realtime sessions that are open.", server.realtime.count)
    yield family(
        "requests_refused_total", "Requests refused with 429, by reason.", admission.refused, label="reason"
    )
    yield from stage_families(coordinator.stage_stats())


def _model(server: AppState, name: str) -> dict[str, Any]:
    adapter = server.capabilities.adapters.get(name.rpartition(":")[2])
    return {
        "id": name,
        "object": "model",
        "created": int(server.started),
        "owned_by": "sglang-omni",
        "root": adapter or _model_path(server),
        "parent": server.served_name if adapter is not None else None,
        "max_model_len": server.capabilities.max_model_len,
    }


def _model_path(server: AppState) -> str:
    return server.info().get("model_path") or server.served_name


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


async def _no_sound() -> AsyncGenerator[Samples, None]:
    return
    yield
