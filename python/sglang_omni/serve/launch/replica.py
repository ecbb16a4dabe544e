"""One server replica: a pipeline's processes and the web server in front of them."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.client import Client
from sglang_omni.config.draw.graph import pipeline_graph
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.instances import stage_of
from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.config.schema.load import config_to_dict
from sglang_omni.config.schema.pipeline import PipelineConfig
from sglang_omni.pipeline.processes.launcher import Launcher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.pipeline.transport import open_files
from sglang_omni.serve.app import create_app
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.admission import AdmissionLimits
from sglang_omni.serve.front.limits import BodyLimits
from sglang_omni.serve.kept_voices import KeptVoices
from sglang_omni.serve.launch.api_workers import ApiWorkers
from sglang_omni.serve.launch.listening import Certificate, tls_context
from sglang_omni.serve.launch.stopping import StopSignals, exit_after
from sglang_omni.serve.launch.tracing import Tracing
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.serve.realtime.ice import NO_ICE_SERVERS, IceServers
from sglang_omni.serve.state import AppState, Capabilities
from sglang_omni.serve.workers.app import WorkerSettings
from sglang_omni.supervision.garbage import freeze_loaded
from sglang_omni.supervision.ports import bind_alone, listen

logger = logging.getLogger(__name__)

# After its requests have ended, a shutdown is over within this time, by force if need be.
_SHUTDOWN_S = 8.0
_REASON = "the server is shutting down"
_BACKLOG = 2048
# Stages report their capacity as they begin. A stage without a report counts as one request.
_REPORTS_S = 0.5
_POLL_S = 0.02


@dataclass(frozen=True)
class ReplicaOptions:
    """
    Attributes:
        host: The address to listen on.
        port: The port; 0 picks a free one.
        model_names: The names that requests give the model, the first in answers; none: the pipeline's.
        max_body_size: Bytes of a request's body.
        max_json_size: Bytes of a JSON body apart from its media.
        start_timeout: Seconds for the pipeline's processes to come up.
        drain_timeout: Seconds that requests have to end after SIGTERM.
        api_workers: How many processes serve HTTP. One: this process does.
        request_timeout: Seconds that one request may take; None: any.
        strict_params: Refuse what answers would else only warn of.
        limits: Those of `--max-concurrent-requests`, `--queue-size` and `--queue-timeout` that were given.
        launcher: Starts the pipeline's processes; None: they are children of this process.
        access: The keys that clients must show; None: no keys.
        tls: What connections are encrypted with; None: they are not.
        tracing: Where spans of requests go; None: none are made.
        ice_servers: Help clients of other networks to reach calls over WebRTC.
        voices: Keeps those that clients upload; None: none are taken.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_names: Sequence[str] = ()
    max_body_size: int = BodyLimits.max_body_size
    max_json_size: int = BodyLimits.max_json_size
    start_timeout: float = 600.0
    drain_timeout: float = 30.0
    api_workers: int = 1
    request_timeout: float | None = 600.0
    strict_params: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    launcher: Launcher | None = None
    access: Access | None = None
    tls: Certificate | None = None
    tracing: Tracing | None = None
    ice_servers: IceServers = NO_ICE_SERVERS
    voices: KeptVoices | None = None


async def run_replica(plan: PipelinePlan, options: ReplicaOptions) -> int:
    """Serve a pipeline until a signal or its loss. Returns an exit status."""
    signals = StopSignals()
    open_files.raise_limit()
    # Bound before anything is loaded, so that a port in use is known at once; listened on when all is up.
    with bind_alone(options.host, options.port) as listener:
        runner = MultiProcessPipelineRunner(plan.config, launcher=options.launcher, plan=plan)
        stopped = asyncio.ensure_future(signals.received.wait())
        try:
            if not await _is_up(runner.start(options.start_timeout), stopped):
                logger.info("Stopped before it served")
                return signals.status_unserved()
            return await _serve(runner, plan, options, listener, signals, stopped)
        finally:
            stopped.cancel()
            exit_after(_SHUTDOWN_S)
            await runner.stop()


async def _is_up(start: Coroutine[Any, Any, None], stopped: asyncio.Future[Any]) -> bool:
    """True once ``start`` has returned; False if a signal came before."""
    starting = asyncio.ensure_future(start)
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if stopped.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    starting.result()
    return True


async def _serve(
    runner: MultiProcessPipelineRunner,
    plan: PipelinePlan,
    options: ReplicaOptions,
    listener: socket.socket,
    signals: StopSignals,
    stopped: asyncio.Future[Any],
) -> int:
    config = runner.config
    access = options.access or Access()
    workers: ApiWorkers | None = None
    held = await _held(runner)
    limits = AdmissionLimits.of_pipeline(held, options.limits)
    spans = None
    if options.tracing is not None:
        from sglang_omni.serve.observe.otel import SpanExport

        spans = SpanExport(options.tracing.endpoint)
    settings = WorkerSettings(
        model_name=next(iter(options.model_names), config.name),
        aliases=options.model_names[1:],
        capabilities=Capabilities.of(config),
        max_body_size=options.max_body_size,
        max_json_size=options.max_json_size,
        request_timeout=options.request_timeout,
        strict_params=options.strict_params,
        access=access,
        terminal_stages=runner.coordinator.terminal_stages,
        voices=options.voices,
    )
    app = create_app(
        Client(runner.coordinator),
        model_name=settings.model_name,
        aliases=settings.aliases,
        capabilities=settings.capabilities,
        max_body_size=options.max_body_size,
        max_json_size=options.max_json_size,
        request_timeout=options.request_timeout,
        limits=limits,
        info=lambda: _info(runner, workers),
        access=access,
        tracer=None if spans is None else spans.tracer,
        graph=pipeline_graph(plan),
        strict_params=options.strict_params,
        ice_servers=options.ice_servers,
        voices=options.voices,
    )
    state: AppState = app.state.server
    if options.api_workers > 1:
        workers = ApiWorkers(
            options.api_workers,
            settings,
            options.tls,
            server=state,
            app=app,
            coordinator=runner.coordinator,
            watchdog=config.watchdog,
        )
        if not await _is_up(workers.start(options.start_timeout), stopped):
            return signals.status_unserved()
    tls = None if options.tls is None else tls_context(*options.tls)
    server = workers or WebServer(app, tls=tls, on_cut=state.metrics.client_cut)
    listen(listener, _BACKLOG)
    freeze_loaded()
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    lost = asyncio.ensure_future(runner.wait_failed())
    host, port = listener.getsockname()[:2]
    logger.info("%s holds %s", config.name, limits.describe(held))
    scheme = "http" if options.tls is None else "https"
    logger.info("%s is served on %s://%s:%d", config.name, scheme, host, port)
    try:
        await asyncio.wait({serving, lost, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            logger.critical("%s", lost.result())
            return 1
        await _drain(runner, state, signals, options.drain_timeout)
        return 0
    finally:
        lost.cancel()
        # Requests that still run are answered with an error, instead of being cut off.
        runner.coordinator.fail_all(_REASON)
        server.stop()
        await serving
        if spans is not None:
            await asyncio.to_thread(spans.close)


async def _held(runner: MultiProcessPipelineRunner) -> dict[str, int]:
    """How many requests each stage works on at once, all its replicas together."""
    stages = {stage.name: stage for stage in runner.config.stages}
    told: dict[str, int] = {}
    for _ in range(round(_REPORTS_S / _POLL_S)):
        for instance, stats in runner.coordinator.stage_stats().items():
            told[stage_of(instance)] = int(stats.get("max_running_reqs", 1))
        if told.keys() >= stages.keys():
            break
        await asyncio.sleep(_POLL_S)
    return {name: told.get(name, 1) * stage.max_replicas for name, stage in stages.items()}


async def _drain(
    runner: MultiProcessPipelineRunner, server: AppState, signals: StopSignals, timeout: float
) -> None:
    """Refuse new requests, and let those that run end, unless a signal says to stop at once.

    What is asked for through a WebSocket that is open counts as running until the WebSocket ends.
    """
    running, sockets = runner.coordinator.health()["total_requests"], len(server.websockets)
    if (running or sockets) and not signals.at_once.is_set():
        counts = ((running, "request"), (sockets, "WebSocket"))
        what = " and ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count)
        logger.info("Shutting down: waiting up to %g s for %s (--drain-timeout)", timeout, what)
    began = time.monotonic()
    if sockets:
        server.admission.closed = _REASON
        await signals.give_time(server.websockets.ended(), timeout)
    left = max(0.0, timeout - (time.monotonic() - began))
    await signals.give_time(runner.coordinator.drain(_REASON), left)


def _info(runner: MultiProcessPipelineRunner, workers: ApiWorkers | None) -> dict[str, Any]:
    """The answer of ``/get_server_info``: the config, and the stages of each process."""
    return {
        # SGLang shows it by this name.
        "kv_events_config": _kv_events_config(runner.config),
        "api_workers": [] if workers is None else workers.describe(),
        "model_path": runner.config.model_path,
        "config": config_to_dict(runner.config),
        "processes": runner.describe_processes(),
    }


def _kv_events_config(config: PipelineConfig) -> str | None:
    """Where the stage that reads prompts publishes the events of its KV cache."""
    of_stages = (merge_factory_args(stage, config).get("kv_events_config") for stage in config.stages)
    return next((each for each in of_stages if each is not None), None)
