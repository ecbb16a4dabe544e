"""The application of an API worker: the routes that it serves itself, over what the main process has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi.routing import APIRoute

from sglang_omni.client import Client
from sglang_omni.serve.app import GENERATION_ROUTES, app_of
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.bodies import JsonBodies, JsonLimits
from sglang_omni.serve.kept_voices import KeptVoices
from sglang_omni.serve.state import AppState, Capabilities
from sglang_omni.serve.workers.forwarding import Forwarding
from sglang_omni.serve.workers.link import WorkerLink
from sglang_omni.serve.workers.stand_ins import (
    MainAdmission,
    MainCoordinator,
    MainHistory,
    MainMetrics,
    MainRequests,
)


@dataclass(frozen=True)
class WorkerSettings:
    """What the application of an API worker has in common with the main process's; see ``create_app``.

    Attributes:
        terminal_stages: The stages whose results make up a request's result.
        voices: Those that clients upload; None: none are kept.
    """

    model_name: str | None
    aliases: Sequence[str]
    capabilities: Capabilities
    max_body_size: int
    max_json_size: int
    request_timeout: float | None
    strict_params: bool
    access: Access
    terminal_stages: frozenset[str]
    voices: KeptVoices | None = None


def worker_app(settings: WorkerSettings, link: WorkerLink) -> tuple[Forwarding, MainMetrics]:
    """The application, and the metrics that it counts in."""
    metrics, running = MainMetrics(link), MainRequests(link)
    server = AppState(
        client=Client(MainCoordinator(link, settings.terminal_stages)),
        model_name=settings.model_name,
        aliases=settings.aliases,
        capabilities=settings.capabilities,
        request_timeout=settings.request_timeout,
        admission=MainAdmission(link),
        metrics=metrics,
        running=running,
        bodies=JsonBodies(JsonLimits(settings.max_json_size)),
        strict_params=settings.strict_params,
        voices=settings.voices,
    )
    server.observe(MainHistory(metrics, running, link))
    routers = [make(server) for make in GENERATION_ROUTES]
    own = app_of(server, settings.access, routers, settings.max_body_size)
    paths = [route.path for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return Forwarding(own, paths, link), metrics
