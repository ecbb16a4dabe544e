"""The program on a host that joins a coordinator, and joins it again if either of them was lost."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

from sglang_omni import __version__
from sglang_omni.pipeline.processes.hosts.addresses import address_towards, require_own_address
from sglang_omni.pipeline.processes.hosts.join_sockets import DealerSocket, JoinRefused
from sglang_omni.pipeline.processes.hosts.messages import (
    HEARTBEATS,
    GoodbyeMessage,
    JoinMessage,
    LeaveMessage,
    RefusedMessage,
    WantedMessage,
    WelcomeMessage,
)
from sglang_omni.pipeline.processes.hosts.node_run import NodeRun
from sglang_omni.pipeline.transport.keys import RunKeys

logger = logging.getLogger(__name__)

# Between two requests to join. A request is answered at once, unless it or the answer is lost.
_ASK_EVERY_S = 1.0
# After a coordinator's goodbye; it may be on its way down, or come up again.
_REJOIN_S = 0.5


class HostAgent:
    """Runs the processes of one node for the coordinator that listens at an endpoint.

    Args:
        coordinator: The coordinator's join port: ``tcp://ADDRESS:PORT``.
        name: The node's name in the coordinator's config.
        key: The join key.
        address: This host's address for other hosts; None: the one from which it reaches the coordinator.

    Raises:
        ValueError: The endpoint or address cannot be used.
    """

    def __init__(self, coordinator: str, name: str, key: RunKeys, address: str | None = None) -> None:
        parts = urlsplit(coordinator)
        try:
            complete = parts.scheme == "tcp" and parts.hostname and parts.port and not parts.path
        except ValueError:
            complete = False
        if not complete:
            raise ValueError(f"{coordinator!r} is no endpoint of a coordinator: tcp://ADDRESS:PORT is")
        self.coordinator = coordinator
        self.name = name
        self.address = address or address_towards(str(parts.hostname), int(parts.port or 0))
        require_own_address(self.address)
        self._key = key

    async def run(self) -> None:
        """Serve, and join again when the run or the connection has ended, until cancelled.

        Raises:
            JoinRefused: The coordinator does not let this host join; the text says why.
        """
        while True:
            connection = DealerSocket(self.coordinator, self._key)
            try:
                logger.info("Joining %s as %r", self.coordinator, self.name)
                await connection.connected()
                reason = await self._serve(connection)
            except asyncio.CancelledError:
                connection.send(LeaveMessage(reason="it was stopped"))
                raise
            finally:
                connection.close()
            logger.warning("%s; joining again", reason)
            await asyncio.sleep(_REJOIN_S)

    async def _serve(self, connection: DealerSocket) -> str:
        """Join, and serve until the run or the connection ends. Returns the reason."""
        welcome = await self._ask(connection)
        if not isinstance(welcome, WelcomeMessage):
            return welcome
        try:
            run = NodeRun(self.name, self.address, welcome)
        except (ValueError, ImportError, OSError) as exc:
            connection.send(LeaveMessage(reason=str(exc)))
            raise JoinRefused(str(exc)) from exc
        logger.info("Joined %s as %r (%s)", self.coordinator, self.name, self.address)
        beating = asyncio.create_task(_beat(connection, run, welcome.host_timeout / HEARTBEATS))
        try:
            return await self._obey(connection, run, welcome.host_timeout)
        finally:
            beating.cancel()
            await run.close()

    async def _ask(self, connection: DealerSocket) -> WelcomeMessage | str:
        request = JoinMessage(name=self.name, version=__version__, address=self.address)
        while True:
            connection.send(request)
            try:
                async with asyncio.timeout(_ASK_EVERY_S):
                    answer = await connection.receive()
            except TimeoutError:
                continue
            match answer:
                case WelcomeMessage():
                    return answer
                case RefusedMessage():
                    raise JoinRefused(answer.reason)
                case GoodbyeMessage():
                    return answer.reason

    async def _obey(self, connection: DealerSocket, run: NodeRun, host_timeout: float) -> str:
        """Start and end processes as the coordinator wants, until the run ends. Returns the reason."""
        while True:
            try:
                async with asyncio.timeout(host_timeout):
                    message = await connection.receive()
            except TimeoutError:
                return (
                    f"The coordinator was not heard of for {host_timeout:g} s: its processes here are ended"
                )
            match message:
                case WantedMessage():
                    run.apply(message)
                case GoodbyeMessage() | RefusedMessage():
                    return f"The coordinator has ended the run here: {message.reason}"
                case WelcomeMessage():
                    pass  # the answer to a request that was repeated


async def _beat(connection: DealerSocket, run: NodeRun, interval: float) -> None:
    """Report every change, and at least once in ``interval`` seconds."""
    while True:
        run.changed.clear()
        connection.send(run.report())
        try:
            async with asyncio.timeout(interval):
                await run.changed.wait()
        except TimeoutError:
            pass
