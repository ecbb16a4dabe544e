"""One member of a fleet, a replica or the router: its process is restarted when it ends or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from sglang_omni.supervision.exits import STACKS_S, describe_exit
from sglang_omni.supervision.ports import listens
from sglang_omni.supervision.restarts import Restarts

logger = logging.getLogger(__name__)

# After being up for this long, earlier deaths are forgotten. Loading a model does not count.
_SETTLED_S = 60.0
_POLL_S = 0.1
# Between two health checks once it is up.
_PROBE_S = 2.0
# The last chance of a silent member, in case this process was the one that did not run.
_LAST_PROBE_S = 5.0


class MemberFailed(RuntimeError):
    """A member ended before it was ever healthy: a restart would not help."""


class FleetMember:
    """A process of the fleet that is restarted when it ends or hangs.

    Its ``/health`` is asked for as long as it runs. Any answer will do: a replica mends its own pipeline. But
    it is up only once its own process listens, not if another program answers on its port.
    Without an answer for ``heartbeat_timeout``, the process writes its stacks if it can, and is restarted.

    Args:
        name: Its name in the log.
        command: The command that starts it.
        base_url: Where it serves.
        environment: Its whole environment; None: this process's. It holds the keys, which the command must
            not: every user of the machine can read that.
        heartbeat_timeout: Seconds. 0: it is only asked until it is up.

    Attributes:
        healthy: Set once one of its processes has been healthy.
        is_up: True if the present process has been healthy.
        limits: The limits of requests in its last health; empty without any.
        process: The present process; None before the first.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        base_url: str,
        environment: Mapping[str, str] | None = None,
        *,
        heartbeat_timeout: float = 30.0,
    ) -> None:
        self.name = name
        self.command = command
        self.environment = environment
        self.base_url = base_url
        self.heartbeat_timeout = heartbeat_timeout
        self.healthy = asyncio.Event()
        self.is_up = False
        self.limits: dict[str, Any] = {}
        self.process: asyncio.subprocess.Process | None = None
        self._port = urlsplit(base_url).port or 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send its process a signal; does nothing if it does not run."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def gone(self) -> None:
        """Return when its process has ended."""
        if self.process is not None:
            await self.process.wait()

    async def keep_running(self, start_timeout: float) -> None:
        """Run it until cancelled.

        Raises:
            MemberFailed: The first process could not be started, ended, or was not healthy in time.
        """
        loop = asyncio.get_running_loop()
        restarts = Restarts()
        while True:
            up_at = loop.time()
            try:
                # A session of its own: Ctrl-C reaches the fleet alone, which stops its members in order.
                process = self.process = await asyncio.create_subprocess_exec(
                    *self.command,
                    start_new_session=True,
                    stdin=asyncio.subprocess.DEVNULL,
                    env=self.environment,
                )
            except OSError as exc:
                # There is no process, descriptor or memory for it now. There may be later.
                reason = f"{self.name} could not be started: {exc}"
                if not self.healthy.is_set():
                    raise MemberFailed(reason) from exc
            else:
                reason, up_at = await self._follow(process, start_timeout)
            if loop.time() - up_at > _SETTLED_S:
                restarts.forget()
            delay = restarts.after_death(loop.time())
            assert delay is not None  # there is no budget
            logger.error("%s; starting it again in %g s", reason, delay)
            await asyncio.sleep(delay)

    async def _follow(self, process: asyncio.subprocess.Process, start_timeout: float) -> tuple[str, float]:
        """Follow a process to its end. Returns how it ended, and since when it had been up."""
        loop = asyncio.get_running_loop()
        self.is_up = False
        ended = asyncio.ensure_future(process.wait())
        fault = ""
        try:
            fault = await self._until_healthy(process, ended, start_timeout)
            up_at = loop.time()
            if fault:
                self.send_signal(signal.SIGKILL)
            elif self.heartbeat_timeout > 0 and await self._until_silent(ended):
                fault = f" it had not answered for {self.heartbeat_timeout:g} s"
                await self._end_hung(ended)
            await ended
        finally:
            ended.cancel()
        reason = f"{self.name} (pid {process.pid}) {describe_exit(await process.wait())}"
        reason += f":{fault}" if fault else ""
        if not self.healthy.is_set():
            raise MemberFailed(reason)
        return reason, up_at

    async def _until_healthy(
        self, process: asyncio.subprocess.Process, ended: asyncio.Future[int], timeout: float
    ) -> str:
        """What is wrong if it was not healthy in time, or has ended beside another program on its port."""
        health = f"{self.base_url}/health"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), _client() as http:
                while not ended.done():
                    if listens(process.pid, self._port):
                        with contextlib.suppress(httpx.TransportError):
                            answer = await http.get(health, timeout=2.0)
                            if answer.status_code == 200:
                                self.is_up = True
                                self.limits = _told_limits(answer)
                                self.healthy.set()
                                logger.info("%s is up at %s", self.name, self.base_url)
                                return ""
                    await asyncio.sleep(_POLL_S)
                with contextlib.suppress(httpx.TransportError):
                    await http.get(health, timeout=2.0)
                    return f" another program answers at {self.base_url}; give another port"
                return ""
        return f" not healthy after {timeout:g} s"

    async def _until_silent(self, ended: asyncio.Future[int]) -> bool:
        """Return True when it has been silent for too long, False when it has ended."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        patience = max(self.heartbeat_timeout - _LAST_PROBE_S, _LAST_PROBE_S)
        # Over one connection, for as long as it works: a member without a descriptor for another one is busy,
        # and not hung.
        async with _client() as http:
            while not ended.done():
                missed = False
                try:
                    await http.get(f"{self.base_url}/health", timeout=patience)
                    heard = loop.time()
                except httpx.TransportError:
                    missed = loop.time() - heard >= patience
                if missed:
                    try:
                        await http.get(f"{self.base_url}/health", timeout=_LAST_PROBE_S)
                        heard = loop.time()
                    except httpx.TransportError:
                        return not ended.done()
                await asyncio.wait({ended}, timeout=_PROBE_S)
        return False

    async def _end_hung(self, ended: asyncio.Future[int]) -> None:
        logger.error("%s does not answer: it is ended, with its stacks written if it still can", self.name)
        self.send_signal(signal.SIGQUIT)
        await asyncio.wait({ended}, timeout=STACKS_S)
        self.send_signal(signal.SIGKILL)


def _client() -> httpx.AsyncClient:
    # Members run on this machine, whatever name their certificate is for.
    return httpx.AsyncClient(trust_env=False, verify=False)


def _told_limits(answer: httpx.Response) -> dict[str, Any]:
    """The limits in a health check's answer, if it has any."""
    try:
        told = answer.json()
    except ValueError:
        return {}
    return dict(told.get("limits", {}))
