"""``/pipeline``: what the page shows of the inside: the stages, what they do now, and where a request is.

Nothing is kept or sent for it: when a page asks, the answer is made of what the coordinator and the metrics
know anyway. So it costs nothing as long as no page does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from sglang_omni.config.draw.layout import laid_out_values
from sglang_omni.config.plan.instances import stage_of
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.observe.history import Generation
from sglang_omni.serve.observe.timeline import unix
from sglang_omni.serve.state import AppState

_STATES = {"error": "failed", "abort": "aborted"}


@dataclass
class StageNow:
    """A stage at this moment, all its replicas together.

    Attributes:
        instances: How many there are.
        down: How many of them take no requests.
        held: Requests that it works on, keeps waiting or waits for more of.
        running: Requests in its present step or batch.
        queued: Requests that wait for a place there.
        most_running: The most that it runs at once; 0 if it does not report that.
        cache_hits: Tokens or items found in its cache, since the start.
        cache_lookups: Tokens or items that were looked for.
        visits: Requests that it is done with, since the start.
        work_s: Seconds of work on them.
        wait_s: The rest of the seconds that they were there.
    """

    instances: int = 0
    down: int = 0
    held: int = 0
    running: int = 0
    queued: int = 0
    most_running: int = 0
    cache_hits: int = 0
    cache_lookups: int = 0
    visits: int = 0
    work_s: float = 0.0
    wait_s: float = 0.0

    def add_stats(self, stats: Mapping[str, float]) -> None:
        """Count what one instance reports."""
        self.running += int(stats["num_running_reqs"])
        self.queued += int(stats.get("num_queue_reqs", 0))
        self.most_running += int(stats.get("max_running_reqs", 0))
        hits = stats.get("cached_tokens_total", 0) + stats.get("cache_hits_total", 0)
        self.cache_hits += int(hits)
        self.cache_lookups += int(
            stats.get("prompt_tokens_total", 0)
            + stats.get("cache_hits_total", 0)
            + stats.get("cache_misses_total", 0)
        )


def inside_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @cache
    def shape() -> dict[str, Any]:
        if server.graph is None:
            raise RequestError(
                "this server does not know its pipeline's stages: create_app was given no graph",
                code="not_supported",
                status=404,
            )
        return laid_out_values(server.graph)

    @router.get("/pipeline")
    async def pipeline() -> JSONResponse:
        """The pipeline's stages and edges, and where they go in a drawing. It stays the same."""
        return JSONResponse(shape())

    @router.get("/pipeline/load")
    async def load() -> JSONResponse:
        """What each stage does at the moment, and what it has done since the start."""
        return JSONResponse(
            {
                "at": time.time(),
                "requests": _requests(server),
                "stages": {name: asdict(stage) for name, stage in _stages(server).items()},
            }
        )

    @router.get("/pipeline/requests")
    async def requests(request: Request, id: str = "") -> JSONResponse:
        """Where one of the caller's latest requests is and was, by its id or that of its answer.

        The list is empty if it is not known, and not yet known: a page asks as soon as it has sent a request.
        """
        if not id:
            raise RequestError(
                "id: which request? Ask for /pipeline/requests?id=ID",
                param="id",
                code="missing_required_parameter",
            )
        generations = server.history.meant_by(id, owner_of(request))
        return JSONResponse({"requests": [_passage(server, generations)] if generations else []})

    return router


def _requests(server: AppState) -> dict[str, int]:
    load = server.coordinator.get_load()
    ended = {state: load.get(state, 0) for state in ("completed", "failed", "aborted")}
    waiting = load.get("pending", 0) + server.admission.waiting
    return {"running": load.get("running", 0), "waiting": waiting, **ended}


def _stages(server: AppState) -> dict[str, StageNow]:
    coordinator, health = server.coordinator, server.transport.health()
    stages: dict[str, StageNow] = {}
    stats = coordinator.stage_stats()
    for instance, held in coordinator.stage_load().items():
        stage = stages.setdefault(stage_of(instance), StageNow())
        stage.instances += 1
        stage.held += held
        is_away = any(instance in (health.get(kind) or ()) for kind in ("down_stages", "hung_stages"))
        stage.down += is_away
        if "num_running_reqs" in stats.get(instance, ()):
            stage.add_stats(stats[instance])
        else:
            # A scheduler of one's own that does not report it may be at work on all that it holds.
            stage.running += held
    for instance, totals in server.metrics.stage_totals().items():
        stage = stages.setdefault(stage_of(instance), StageNow())
        stage.visits += int(totals.visits)
        stage.work_s += totals.work
        stage.wait_s += totals.wait
    return stages


def _passage(server: AppState, generations: list[Generation]) -> dict[str, Any]:
    """What became of the last of these, and of those that ran beside it: choices of one request do."""
    last = generations[-1]
    together = [each for each in generations if each.ended is None or each.ended >= last.began]
    runs = any(each.ended is None for each in together)
    ends = [each.ended for each in together if each.ended is not None]
    return {
        "id": last.request_id if last.name is None else last.name.id,
        "state": "running" if runs else _STATES.get(last.finish_reason or "", "completed"),
        "now": time.time(),
        "began": unix(min(each.arrived for each in together)),
        "ended": None if runs else unix(max(ends)),
        "at": sorted({stage_of(at) for each in together for at in _held_at(server, each)}),
        "visits": sorted(_visits(server, together), key=lambda visit: visit["began"]),
    }


def _held_at(server: AppState, generation: Generation) -> list[str]:
    return server.coordinator.held_at(generation.request_id, owner=generation.owner)


def _visits(server: AppState, generations: Iterable[Generation]) -> list[dict[str, Any]]:
    traces = [server.coordinator.trace(each.request_id, owner=each.owner) for each in generations]
    return [
        {"stage": stage_of(v.instance), "began": v.began, "work_s": v.work, "wait_s": v.wait}
        for trace in traces
        if trace is not None
        for v in trace.visits
    ]
