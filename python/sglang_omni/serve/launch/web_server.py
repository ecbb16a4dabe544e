"""The web server: uvicorn's, behind an accept loop that never runs out of descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from sglang_omni.proto import SHORTAGES
from sglang_omni.serve.launch.connections import Connection, ConnectionLimits, Connections
from sglang_omni.supervision.forks import own

logger = logging.getLogger(__name__)

# Longer than routers and clients keep an idle connection, so that none is closed while it is used again.
_KEEP_ALIVE_S = 120
# Seconds that clients have to read their answers once no request runs any more.
LAST_WORDS_S = 2
# Of one message, which is held in memory: an image, or minutes of sound.
_MAX_MESSAGE_BYTES = 16 * 2**20
# Between two pings of a WebSocket, and until the answer to one.
_PING_S = 20.0
# Connections accepted before other work has its turn.
_AT_ONCE = 64
# Until the next try to accept, if no connection ends before.
_RETRY_S = 0.25
# Bytes that the kernel holds of an answer beyond those that it has sent to the client's machine.
_KERNEL_HOLDS = 262_144
_SAY_AGAIN_S = 10.0


class WebServer(uvicorn.Server):
    """Serves an application on sockets that are bound already; ``serve(sockets=[...])`` runs it.

    It leaves signals to its caller, which must stop the pipeline after the server.

    Args:
        tls: What connections are encrypted with; None: they are not.
        on_cut: Called for each client that is cut because it takes its answer too slowly.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_config=None,
                ws="websockets-sansio",
                ws_max_size=_MAX_MESSAGE_BYTES,
                ws_ping_interval=_PING_S,
                ws_ping_timeout=_PING_S,
                # Sound does not shrink, and each connection would need memory for it.
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=LAST_WORDS_S,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        self.limits = limits or ConnectionLimits()
        self.tls = tls
        self.on_cut = on_cut
        self.connections: Connections | None = None
        self.opening: Opening | None = None
        self._accepting: list[Accepting] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        connections = self.connections = Connections(self.limits, self.on_cut)
        self._sweeping = asyncio.ensure_future(connections.sweep())

        def protocol() -> asyncio.BaseProtocol:
            made: asyncio.BaseProtocol = Connection(
                connections,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            return made

        opening = self.opening = Opening(connections, protocol, self.tls)
        self._accepting = [Accepting(each, opening) for each in sockets or ()]

    def stop(self) -> None:
        """End ``serve``: clients get the rest of their answers, for a moment."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self._accepting:
            each.close()
        await super().shutdown(sockets)
        if self._sweeping is not None:
            self._sweeping.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Opening:
    """Opens the connections that were accepted.

    Attributes:
        connections: Those that are open.
        on_room: Called when there may be room for one more.
    """

    def __init__(
        self,
        connections: Connections,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.connections = connections
        self.on_room: Callable[[], None] = lambda: None
        self._protocol = protocol
        # A client has as long for the handshake as for a request's head.
        self._secured: dict[str, Any] = (
            {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": connections.limits.head_s}
        )
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        connections.on_end = lambda: self.on_room()

    @property
    def limit(self) -> int:
        return self.connections.limit

    def has_room(self) -> bool:
        """True if one more may be taken. If not, there may be room in a moment."""
        return self.connections.make_room(len(self._tasks))

    def take(self, accepted: socket.socket) -> None:
        own(accepted).setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # The kernel ends a connection whose client is gone, or has taken no data for so long.
            stall_ms = round(1000 * self.connections.limits.stall_s)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # What a client does not take waits here, where it is counted, and not in the kernel, which
            # would take megabytes at once and then nothing for minutes.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_HOLDS)
        opening = asyncio.ensure_future(
            self._loop.connect_accepted_socket(self._protocol, accepted, **self._secured)
        )
        self._tasks.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[object]) -> None:
        self._tasks.discard(opening)
        if not opening.cancelled() and (failure := opening.exception()) is not None:
            # Scanners, and clients that speak plain HTTP.
            logger.debug("A connection could not be opened: %r", failure)
            self.on_room()


class TakesConnections(Protocol):
    """Where accepted connections go; see ``Opening``."""

    on_room: Callable[[], None]

    @property
    def limit(self) -> int: ...

    def has_room(self) -> bool: ...

    def take(self, accepted: socket.socket) -> None: ...


class Accepting:
    """Accepts connections of a listening socket while there is room for them; others wait in its backlog.

    asyncio's own accept loop, short of descriptors, would try on at once, with a traceback each time.
    """

    def __init__(self, listener: socket.socket, taker: TakesConnections) -> None:
        self._listener = listener
        self._taker = taker
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._said_at = -_SAY_AGAIN_S
        listener.setblocking(False)
        taker.on_room = self._on_room
        self._resume()

    def close(self) -> None:
        """Accept no more. Connections in the backlog are refused when the socket is closed."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._taker.has_room():
                self._pause(f"{self._taker.limit} connections are open, and there is room for no more")
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in SHORTAGES:
                    # The loop would call this at once again, and again.
                    self.close()
                    logger.critical("No connection can be taken any more: %s", exc)
                    return
                self._pause(f"no connection can be taken: {exc.strerror}")
                return
            self._taker.take(accepted)

    def _pause(self, why: str) -> None:
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(_RETRY_S, self._resume)
        now = time.monotonic()
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            logger.warning("%s; new ones wait, and the silent ones are closed, the oldest first", why)

    def _on_room(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._resume()

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)
