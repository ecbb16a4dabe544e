"""``/start_profile``, ``/stop_profile`` and ``/traces/ID``: what requests did when, for ui.perfetto.dev."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from sglang_omni.proto import RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.models.admin import StartProfile
from sglang_omni.serve.observe.chrome_trace import chrome_trace
from sglang_omni.serve.observe.history import MOST_REMEMBERED, Generation
from sglang_omni.serve.observe.timeline import timelines
from sglang_omni.serve.state import AppState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Profile:
    """The profile that runs. ``since``: by ``time.monotonic``. ``torch``: whether stages record torch too."""

    profile_id: str
    since: float
    folder: Path
    torch: bool


def profile_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    running: _Profile | None = None

    @router.post("/start_profile", openapi_extra=_optional_body())
    async def start_profile(request: Request) -> JSONResponse:
        """Record every request until ``/stop_profile``: its way through the processes and its steps."""
        nonlocal running
        body = await _body(server, request)
        if running is not None:
            raise RequestError(
                f"profile {running.profile_id!r} is running; POST /stop_profile ends it",
                code="profile_running",
                status=409,
            )
        # Servers of one fleet write into the same folder.
        profile_id = f"{body.profile_id or time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        folder = Path(body.output_dir or _default_folder())
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        except OSError as exc:
            raise RequestError(f"output_dir: {exc}", param="output_dir", code="invalid_value") from exc
        if body.activities:
            template = str(folder / "{run_id}-{stage}.torch.json")
            await server.coordinator.start_profile(profile_id, template, list(body.activities))
        server.coordinator.trace_steps(True)
        running = _Profile(profile_id, time.monotonic(), folder, bool(body.activities))
        logger.info("Profile %s has begun; it will be in %s", profile_id, folder)
        return JSONResponse({"profile_id": profile_id, "output_dir": str(folder)})

    @router.post("/stop_profile")
    async def stop_profile() -> JSONResponse:
        """End the profile and write its trace."""
        nonlocal running
        if running is None:
            raise RequestError(
                "no profile is running; POST /start_profile begins one", code="no_profile", status=409
            )
        profile, running = running, None
        server.coordinator.trace_steps(server.traces_steps)
        path = profile.folder / f"{profile.profile_id}.json"
        generations = server.history.since(profile.since)
        if profile.torch:
            await server.coordinator.stop_profile(profile.profile_id)
        text = json.dumps(_trace(server, generations))
        # After the stages have stopped, which must not depend on room for a file here.
        await asyncio.to_thread(_write, path, text)
        answer = {"profile_id": profile.profile_id, "requests": len(generations), "file": str(path)}
        if profile.torch:
            # Processes that have loaded torch write them, on their own hosts, which takes a while.
            answer["torch_files"] = str(profile.folder / f"{profile.profile_id}-STAGE.torch.json")
        logger.info("Profile %s of %d requests is in %s", profile.profile_id, len(generations), path)
        return JSONResponse(answer)

    @router.get("/traces/{request_id:path}")
    async def trace(request_id: str, request: Request) -> JSONResponse:
        """The trace of one of the caller's latest requests, by its id or that of its answer."""
        generations = server.history.meant_by(request_id, owner_of(request))
        if not generations:
            raise RequestError(
                f"no request {request_id!r} is known; the latest {MOST_REMEMBERED} are",
                param="request_id",
                code="request_not_found",
                status=404,
            )
        return JSONResponse(_trace(server, generations))

    return router


def _optional_body() -> dict[str, Any]:
    """The body as OpenAPI tells it: it is read by hand, so FastAPI does not know its fields."""
    schema = StartProfile.model_json_schema()
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}


async def _body(server: AppState, request: Request) -> StartProfile:
    """The body, which may be left out."""
    if not await request.body():
        return StartProfile()
    read = await server.bodies.read(request, StartProfile)
    assert isinstance(read, StartProfile)
    return read


def _default_folder() -> str:
    """SGLang's variable for it, or a folder of the system's for temporary files."""
    given = os.environ.get("SGLANG_TORCH_PROFILER_DIR")
    return given or str(Path(tempfile.gettempdir()) / "sglang-omni-profiles")


def _write(path: Path, text: str) -> None:
    """Writes the file whole, or none."""
    try:
        path.write_text(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _trace(server: AppState, generations: list[Generation]) -> dict[str, Any]:
    return chrome_trace(timelines(generations, server.coordinator), _processes(server))


def _processes(server: AppState) -> Mapping[str, str]:
    """The process of each instance, by name."""
    processes = server.info().get("processes", ())
    return {stage: process["name"] for process in processes for stage in process["stages"]}
