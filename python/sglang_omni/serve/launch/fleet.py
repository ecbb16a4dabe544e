"""Several server replicas and a router in front of them: started, restarted and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sglang_omni.gpus import VISIBLE_DEVICES
from sglang_omni.proto.kv_events import KvEventsConfig
from sglang_omni.serve.launch.keys import replicas_environment, runs_key
from sglang_omni.serve.launch.member import FleetMember, MemberFailed
from sglang_omni.serve.launch.router_process import ROUTER_CONFIG
from sglang_omni.serve.launch.stopping import StopSignals
from sglang_omni.supervision.ports import bind, bind_alone

if TYPE_CHECKING:
    from sglang_omni.config.plan.pipeline import PipelinePlan

logger = logging.getLogger(__name__)

KV_EVENTS = "--kv-events-config"

# Seconds that members have to leave, with their own children, before they are killed.
_LEAVE_S = 4.5


@dataclass(frozen=True)
class FleetOptions:
    """
    Attributes:
        size: How many replicas there are.
        host: The router's address.
        port: The router's port; 0 picks a free one.
        replica_args: Arguments of ``launch_server`` common to all replicas.
        replica_environment: What their environment has beside the keys and the fleet's own.
        router: Fields of the RouterConfig except the workers, the address and the time to drain.
        start_timeout: Seconds for a replica to come up.
        drain_timeout: Seconds that requests have to end after SIGTERM.
        heartbeat_timeout: Seconds of silence after which a member is restarted; 0: it never is.
        gpus: The ``CUDA_VISIBLE_DEVICES`` of each replica; empty if all have the fleet's own.
        run_secret: What the key between router and replicas is made from, the same in each run; None: it is
            random.
    """

    size: int
    host: str
    port: int
    replica_args: Sequence[str]
    router: Mapping[str, Any]
    start_timeout: float
    drain_timeout: float
    heartbeat_timeout: float = 30.0
    gpus: Sequence[str] = ()
    run_secret: bytes | None = field(default=None, repr=False)
    replica_environment: Mapping[str, str] = field(default_factory=dict)


async def run_fleet(options: FleetOptions) -> int:
    """Serve until a signal. Returns an exit status."""
    signals = StopSignals()
    with contextlib.ExitStack() as held:
        # Bound, and never listened on here: the ports stay the members', whenever those start. A port in use
        # is known before the models are loaded.
        of_router = held.enter_context(bind_alone(options.host, options.port))
        options = replace(options, port=of_router.getsockname()[1])
        of_replicas = [held.enter_context(bind("127.0.0.1")) for _ in range(options.size)]
        ports = [listener.getsockname()[1] for listener in of_replicas]
        key, router = runs_key(options.router, options.run_secret)
        options = replace(options, router=router)
        replicas = [_replica(index, port, options, key) for index, port in enumerate(ports)]
        return await _run(replicas, _router(options), options, signals)


async def _run(
    replicas: list[FleetMember], router: FleetMember, options: FleetOptions, signals: StopSignals
) -> int:
    """Run the replicas and, once they are healthy, the router; in the end, end all of them."""
    tasks = [asyncio.ensure_future(r.keep_running(options.start_timeout)) for r in replicas]
    stopped = asyncio.ensure_future(signals.received.wait())
    try:
        if not await _either(_all_healthy(replicas), stopped, tasks):
            logger.info("Stopped before it served")
            return signals.status_unserved()
        router.environment = _router_environment(replicas, options)
        tasks.append(asyncio.ensure_future(router.keep_running(60.0)))
        if not await _either(router.healthy.wait(), stopped, tasks):
            return signals.status_unserved()
        logger.info("%d replicas are served on %s", options.size, router.base_url)
        await _either(None, stopped, tasks)
        return 0
    except MemberFailed as exc:
        logger.critical("%s", exc)
        return 1
    finally:
        stopped.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        drain_timeout = options.drain_timeout if signals.received.is_set() else 0.0
        await _end(replicas, router, drain_timeout, signals)


async def _all_healthy(members: Sequence[FleetMember]) -> None:
    for member in members:
        await member.healthy.wait()


async def _either(
    goal: Awaitable[Any] | None, stopped: asyncio.Future[Any], tasks: Sequence[asyncio.Future[None]]
) -> bool:
    """True if ``goal`` was reached before the fleet was stopped.

    Raises:
        MemberFailed: One of the members failed first.
    """
    waiting: set[asyncio.Future[Any]] = {stopped, *tasks}
    reached = asyncio.ensure_future(goal) if goal is not None else None
    if reached is not None:
        waiting.add(reached)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if reached is not None and not reached.done():
        reached.cancel()
    for task in tasks:
        if task.done():
            task.result()
    return reached is not None and reached.done() and not reached.cancelled() and not stopped.done()


async def _end(
    replicas: Sequence[FleetMember], router: FleetMember, drain_timeout: float, signals: StopSignals
) -> None:
    """End the fleet. The router takes no more requests, and leaves when the last has ended. Then, or after
    ``drain_timeout``, the replicas leave; their last answers reach clients through the router."""
    if router.is_running:
        router.send_signal(signal.SIGTERM)
        await signals.give_time(router.gone(), drain_timeout)
    for replica in replicas:
        # One that is still importing has no requests, and would show SIGINT as a traceback.
        replica.send_signal(signal.SIGINT if replica.is_up else signal.SIGTERM)
    waits = [asyncio.ensure_future(member.gone()) for member in (*replicas, router)]
    await asyncio.wait(waits, timeout=_LEAVE_S)
    for member in (*replicas, router):
        if member.is_running:
            logger.warning("%s is killed: still there after %g s", member.name, _LEAVE_S)
            member.send_signal(signal.SIGKILL)
    await asyncio.gather(*waits)


def _replica(index: int, port: int, options: FleetOptions, key: str) -> FleetMember:
    command = [
        *(sys.executable, "-m", "sglang_omni.launch_server"),
        *("--host", "127.0.0.1", "--port", str(port), "--parent-pid", str(os.getpid())),
        *("--log-name", f"replica-{index}"),
        *_with_ports_of(index, options.size, options.replica_args),
    ]
    url = f"http://127.0.0.1:{port}"
    environment = {**replicas_environment(key), **options.replica_environment}
    if options.gpus:
        environment = {**environment, VISIBLE_DEVICES: options.gpus[index]}
    return FleetMember(
        f"replica {index}", command, url, environment, heartbeat_timeout=options.heartbeat_timeout
    )


def _with_ports_of(index: int, size: int, args: Sequence[str]) -> list[str]:
    """A replica's arguments, with ports of its own for the events of its cache."""
    args = list(args)
    if KV_EVENTS in args:
        at = args.index(KV_EVENTS) + 1
        args[at] = KvEventsConfig.parse(args[at]).of_rank(index, size).to_json()
    return args


def _router(options: FleetOptions) -> FleetMember:
    """The router's process, whose environment is known once the replicas are up."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(options.host, options.host)
    scheme = "https" if options.router.get("tls_cert_path") else "http"
    url = f"{scheme}://{host}:{options.port}"
    command = [sys.executable, "-m", "sglang_omni.serve.launch.router_process", str(os.getpid())]
    return FleetMember("router", command, url, heartbeat_timeout=options.heartbeat_timeout)


def _router_environment(replicas: Sequence[FleetMember], options: FleetOptions) -> dict[str, str]:
    limits = router_limits([replica.limits for replica in replicas]) | dict(options.router)
    if (limits.get("max_concurrent_requests") or -1) != -1:
        logger.info(
            "The fleet holds %d requests at once, more wait in its router (--router-max-concurrent-requests, "
            "--router-queue-size, --router-queue-timeout)",
            limits["max_concurrent_requests"],
        )
    config = {
        **limits,
        "worker_urls": [replica.base_url for replica in replicas],
        "host": options.host,
        "port": options.port,
        # Longer than the replicas take to end their requests.
        "drain_timeout": options.drain_timeout + _LEAVE_S,
    }
    return {**os.environ, ROUTER_CONFIG: json.dumps(config)}


def share_of_each(devices: Sequence[str], size: int) -> int:
    """How many of the GPUs one of ``size`` replicas gets; at least one."""
    return max(len(devices) // size, 1)


def gpus_of_replicas(plan: PipelinePlan, devices: Sequence[str], size: int) -> list[str]:
    """The ``CUDA_VISIBLE_DEVICES`` of each replica: as many GPUs for each, and none for two.

    A replica counts its GPUs from 0, so that it needs as many as the highest ``gpu`` of its stages says.

    Args:
        plan: The pipeline's plan, as it is in a replica with ``share_of_each`` GPUs.
        devices: The fleet's GPUs, as ``CUDA_VISIBLE_DEVICES`` names them.
        size: How many replicas there are.

    Returns:
        One value for each replica; none if the pipeline uses no GPU here, or there is no GPU.

    Raises:
        ValueError: There are not enough GPUs.
    """
    needed = 1 + max((gpu.gpu_id for gpu in plan.placement.gpus.values() if gpu.node is None), default=-1)
    if not needed or not devices:
        return []
    if needed * size > len(devices):
        there_are = "1 is" if len(devices) == 1 else f"{len(devices)} are"
        raise ValueError(
            f"--dp-size {size} with {needed} GPU{'s' * (needed > 1)} each needs {needed * size} GPUs; "
            f"{there_are} visible"
        )
    each = share_of_each(devices, size)
    return [",".join(devices[index * each : (index + 1) * each]) for index in range(size)]


def router_limits(replicas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The router's limits from those of its replicas: requests wait in the router, in one queue, and replicas
    seldom refuse any.

    Args:
        replicas: The ``limits`` in the health of each.

    Returns:
        Fields of the RouterConfig; none if a replica takes any number of requests, or reports no limits.
    """
    running = [each.get("max_concurrent_requests") for each in replicas]
    if not running or None in running:
        return {}
    return {
        "max_concurrent_requests": sum(running),
        "queue_size": sum(each["queue_size"] for each in replicas),
        "queue_timeout": max(each["queue_timeout"] for each in replicas),
    }
