"""Several replicas and the router in front of them: started, watched, restarted and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from sglang_omni.serve.key_flags import replicas_environment, runs_key
from sglang_omni.serve.processes import ROUTER_CONFIG, StopSignals, bind

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
# Who has been healthy this long starts again as if it had never ended. Loading a model does not count.
_SETTLED_S = 60.0
_POLL_S = 0.1
# What members may take to leave before they are killed; theirs must leave with them.
_LEAVE_S = 4.5


class MemberFailed(RuntimeError):
    """A member ended before it was ever healthy: starting it again would not help."""


@dataclass(frozen=True)
class FleetOptions:
    """
    Attributes:
        replica_args: Arguments of ``launch_server`` common to all replicas.
        router: Fields of the RouterConfig beside the workers, where to listen, and how long to drain.
        drain_timeout: Seconds that requests have to end after SIGTERM.
    """

    size: int
    host: str
    port: int
    replica_args: Sequence[str]
    router: Mapping[str, Any]
    start_timeout: float
    drain_timeout: float


class Member:
    """One process of the fleet, and those that take its place when it ends.

    Attributes:
        environment: Its whole environment, as far as it is not this process's. Keys are there and not in the
            command, which every user of the machine can read.
        healthy: Set once any of them has been.
        is_up: Whether the last of them has been.
        process: The last of them; None before the first.
    """

    def __init__(
        self, name: str, command: Sequence[str], base_url: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.environment = environment
        self.command = command
        self.base_url = base_url
        self.healthy = asyncio.Event()
        self.is_up = False
        self.process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens where it does not run."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def gone(self) -> None:
        """Returns when its process has ended."""
        if self.process is not None:
            await self.process.wait()

    async def keep_running(self, start_timeout: float) -> None:
        """Runs until it is cancelled.

        Raises:
            MemberFailed: The first process ended, or was not healthy in time.
        """
        loop = asyncio.get_running_loop()
        backoff = _FIRST_BACKOFF_S
        while True:
            # A session of its own: Ctrl-C reaches the fleet, which stops its members in order.
            process = self.process = await asyncio.create_subprocess_exec(
                *self.command,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                env=self.environment,
            )
            self.is_up = False
            ended = asyncio.ensure_future(process.wait())
            try:
                in_time = await self._until_healthy(ended, start_timeout)
                up_at = loop.time()
                if not in_time and process.returncode is None:
                    process.kill()
                await ended
            finally:
                ended.cancel()
            reason = f"{self.name} (pid {process.pid}) {_describe_exit(await process.wait())}"
            if not self.healthy.is_set():
                raise MemberFailed(reason if in_time else f"{reason}: not healthy after {start_timeout:g} s")
            if loop.time() - up_at > _SETTLED_S:
                backoff = _FIRST_BACKOFF_S
            logger.error("%s; starting it again in %g s", reason, backoff)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF_S)

    async def _until_healthy(self, ended: asyncio.Future[int], timeout: float) -> bool:
        """Whether it was healthy, or ended, in time."""
        with contextlib.suppress(TimeoutError):
            # A member is this machine's own, whatever name its certificate is for.
            client = httpx.AsyncClient(trust_env=False, timeout=2.0, verify=False)
            async with asyncio.timeout(timeout), client as http:
                while not ended.done():
                    with contextlib.suppress(httpx.TransportError):
                        answer = await http.get(f"{self.base_url}/health")
                        if answer.status_code == 200:
                            self.is_up = True
                            self.healthy.set()
                            logger.info("%s is up at %s", self.name, self.base_url)
                            return True
                    await asyncio.sleep(_POLL_S)
                return True
        return False


async def run_fleet(options: FleetOptions) -> int:
    """Serve until a signal. Returns an exit status."""
    signals = StopSignals()
    with contextlib.ExitStack() as held:
        # A port in use is better known before the models are loaded.
        options = replace(options, port=_hold_port(held, options.host, options.port))
        ports = [_hold_port(held, "127.0.0.1") for _ in range(options.size)]
        key, router = runs_key(options.router)
        options = replace(options, router=router)
        replicas = [_replica(index, port, options, key) for index, port in enumerate(ports)]
        return await _run(replicas, _router([r.base_url for r in replicas], options), options, signals)


async def _run(replicas: list[Member], router: Member, options: FleetOptions, signals: StopSignals) -> int:
    """Runs the replicas and, once they are healthy, the router; ends all of them."""
    tasks = [asyncio.ensure_future(r.keep_running(options.start_timeout)) for r in replicas]
    stopped = asyncio.ensure_future(signals.received.wait())
    try:
        if not await _either(_all_healthy(replicas), stopped, tasks):
            logger.info("Stopped before it served")
            return signals.status_unserved()
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


async def _all_healthy(members: Sequence[Member]) -> None:
    for member in members:
        await member.healthy.wait()


async def _either(
    goal: Awaitable[Any] | None, stopped: asyncio.Future[Any], tasks: Sequence[asyncio.Future[None]]
) -> bool:
    """Whether ``goal`` was reached before the fleet was stopped.

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
    replicas: Sequence[Member], router: Member, drain_timeout: float, signals: StopSignals
) -> None:
    """The router takes no more requests and, when the last has ended, leaves. Then, or after
    ``drain_timeout``, the replicas leave, and what they still have to say reaches clients through it."""
    if router.is_running:
        router.send_signal(signal.SIGTERM)
        await signals.give_time(router.gone(), drain_timeout)
    for replica in replicas:
        # One that is still importing has no request, nor a way to take SIGINT in silence.
        replica.send_signal(signal.SIGINT if replica.is_up else signal.SIGTERM)
    waits = [asyncio.ensure_future(member.gone()) for member in (*replicas, router)]
    await asyncio.wait(waits, timeout=_LEAVE_S)
    for member in (*replicas, router):
        if member.is_running:
            logger.warning("%s is killed: still there after %g s", member.name, _LEAVE_S)
            member.send_signal(signal.SIGKILL)
    await asyncio.gather(*waits)


def _hold_port(held: contextlib.ExitStack, host: str, port: int = 0) -> int:
    """A port that stays a member's, whenever it starts, for as long as ``held`` is open.

    The socket that holds it never listens, which leaves the port to whoever binds it by number, as
    members do, and out of what the system hands out as free.
    """
    return held.enter_context(bind(host, port)).getsockname()[1]


def _replica(index: int, port: int, options: FleetOptions, key: str) -> Member:
    command = [
        *(sys.executable, "-m", "sglang_omni.launch_server"),
        *("--host", "127.0.0.1", "--port", str(port), "--parent-pid", str(os.getpid())),
        *("--log-name", f"replica-{index}"),
        *options.replica_args,
    ]
    return Member(f"replica {index}", command, f"http://127.0.0.1:{port}", replicas_environment(key))


def _router(worker_urls: Sequence[str], options: FleetOptions) -> Member:
    config = {
        **options.router,
        "worker_urls": list(worker_urls),
        "host": options.host,
        "port": options.port,
        # The replicas end first what is under way by then.
        "drain_timeout": options.drain_timeout + _LEAVE_S,
    }
    command = [sys.executable, "-m", "sglang_omni.serve.router_process", str(os.getpid())]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(options.host, options.host)
    scheme = "https" if options.router.get("tls_cert_path") else "http"
    environment = {**os.environ, ROUTER_CONFIG: json.dumps(config)}
    return Member("router", command, f"{scheme}://{host}:{options.port}", environment)


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    return f"was killed by {signal.Signals(-status).name}"
