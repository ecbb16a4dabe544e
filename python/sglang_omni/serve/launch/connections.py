"""The connections of a server: how many there may be, and how long a client may be silent, or slow.

A request never waits for its client: what the client has not taken yet lies in memory, and the request ends,
and gives its place to another, once it has been computed. The client's next one waits until that is taken.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sglang_omni.serve.front.errors import error_body

logger = logging.getLogger(__name__)

# Descriptors for the start of a stage, for uploads, and for other files that are opened later.
_RESERVED = 64
# No single event loop serves more connections than this.
_MOST_DESCRIPTORS = 65_536
_FEWEST_CONNECTIONS = 16
# A younger connection may be about to send its request.
_YOUNG_S = 0.5
# Until a connection is closed whose client goes on to send what cannot be read.
_LAST_WORDS_S = 2.0
# Bytes of a request's head.
_LONGEST_HEAD = 65_536
_UNREADABLE = "the request is not valid HTTP/1.1"  # as the router says it


@dataclass(frozen=True)
class ConnectionLimits:
    """
    Attributes:
        head_s: Seconds from a request's first byte, or a connection's beginning, to the end of its head.
        idle_s: Seconds without a request; longer than ``timeout_keep_alive``, which ends it more gently.
        stall_s: Seconds that a client may send nothing of a body, or take nothing of its answer.
        least_rate: Bytes a second that a body must arrive with, or an answer be taken with, on average, after
            its first ``stall_s``.
        most_unread: Bytes of answers that all clients together may leave untaken.
        max_connections: None: as many as the limit on descriptors leaves.
        sweep_s: Seconds between two looks for connections that are over their time.
    """

    head_s: float = 30.0
    idle_s: float = 125.0
    stall_s: float = 60.0
    least_rate: float = 8192.0
    most_unread: int = 2**30
    max_connections: int | None = None
    sweep_s: float = 1.0


def room_for_connections() -> int:
    """How many connections this process may have, with descriptors in reserve for other files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = _MOST_DESCRIPTORS
    in_use = len(os.listdir("/dev/fd"))
    return max(_FEWEST_CONNECTIONS, limit - in_use - _RESERVED)


class Connections:
    """The connections of one server.

    They have no timers of their own: a sweep now and then finds those that wait for their client too long.

    Attributes:
        limits: The limits.
        limit: How many connections there may be.
        timed_out: How many were closed for their silence.
        evicted: How many without a request were closed to make room.
        on_end: Called when one ends.
        on_cut: Called when one is cut because its client takes its answer too slowly.
    """

    def __init__(self, limits: ConnectionLimits, on_cut: Callable[[], None] = lambda: None) -> None:
        self.limits = limits
        self.on_cut = on_cut
        self.limit = limits.max_connections or room_for_connections()
        self.timed_out = self.evicted = 0
        self.on_end: Callable[[], None] | None = None
        self._all: set[Connection] = set()
        # Those without a request, the longest first, and those with more of a body to come: until when.
        self._silent: OrderedDict[Connection, float] = OrderedDict()
        self._uploading: dict[Connection, float] = {}
        # Those whose clients are behind with their answers: since when, and how much they had taken then.
        self._behind: dict[Connection, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._all)

    async def sweep(self) -> None:
        """Close connections that are over their time, until cancelled."""
        while True:
            await asyncio.sleep(self.limits.sweep_s)
            now = time.monotonic()
            late = [
                each
                for times in (self._silent, self._uploading)
                for each, until in times.items()
                if until < now
            ]
            for connection in late:
                self.timed_out += 1
                connection.close()
            self._cut_slow(now)

    def make_room(self, opening: int) -> bool:
        """True if one more may be open beside those that are ``opening``.

        If not, the one that has been without a request for longest is closed, which makes room in a moment.
        """
        if len(self._all) + opening < self.limit:
            return True
        self.evict()
        return False

    def evict(self) -> None:
        """Close the connection that has been without a request for longest, unless that is a moment."""
        oldest = next(iter(self._silent), None)
        if oldest is not None and time.monotonic() - oldest.silent_since >= _YOUNG_S:
            self.evicted += 1
            oldest.abort()

    def begins(self, connection: Connection) -> None:
        self._all.add(connection)
        self.falls_silent(connection, self.limits.head_s)

    def ends(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._silent.pop(connection, None)
        self._uploading.pop(connection, None)
        self._behind.pop(connection, None)
        if self.on_end is not None:
            self.on_end()

    def falls_silent(self, connection: Connection, seconds: float) -> None:
        """Note that a connection has no request; the next head must be complete within ``seconds``.

        Its time does not begin before its client has taken the last answer.
        """
        if connection in self._all and connection not in self._behind:
            connection.silent_since = time.monotonic()
            self._silent[connection] = connection.silent_since + seconds
            self._silent.move_to_end(connection)

    def begins_head(self, connection: Connection) -> None:
        self._silent[connection] = time.monotonic() + self.limits.head_s

    def has_request(self, connection: Connection) -> None:
        self._silent.pop(connection, None)

    def awaits_body(self, connection: Connection, until: float) -> None:
        if connection in self._all:
            self._uploading[connection] = until

    def has_body(self, connection: Connection) -> None:
        self._uploading.pop(connection, None)

    def falls_behind(self, connection: Connection) -> None:
        if connection in self._all:
            self._behind[connection] = time.monotonic(), connection.taken

    def catches_up(self, connection: Connection) -> None:
        self._behind.pop(connection, None)
        if connection.is_idle:
            self.falls_silent(connection, self.limits.idle_s)

    def _cut_slow(self, now: float) -> None:
        limits = self.limits
        for connection, (since, taken) in list(self._behind.items()):
            came = max(0, connection.taken - taken)
            if since + limits.stall_s + came / limits.least_rate < now:
                self._cut(connection, f"it took {came} bytes in {now - since:.0f} s")
        unread = {connection: connection.unread for connection in self._behind}
        while sum(unread.values()) > limits.most_unread:
            most = max(unread, key=lambda each: unread[each])
            del unread[most]
            self._cut(most, f"all clients together have left more than {limits.most_unread} bytes")

    def _cut(self, connection: Connection, why: str) -> None:
        logger.warning(
            "A client (%s) takes its answer too slowly, and is cut with %d bytes not taken: %s",
            connection.peer,
            connection.unread,
            why,
        )
        del self._behind[connection]
        connection.abort()
        self.on_cut()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, which tells ``Connections`` what it awaits from its client."""

    def __init__(self, connections: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self.tracked_by = connections
        self.silent_since = 0.0
        self.open_requests = 0
        self.is_idle = False
        # Bytes of a head that is not complete.
        self.head_size = 0
        self.in_head = False
        # What comes is read no more.
        self.is_refused = False
        self.written = 0
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.served_app: ASGIApp = self.config.loaded_app
        self.app: ASGIApp = self.serve_request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.tracked_by.begins(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.tracked_by.ends(self)
        self.caught_up.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        if self.is_idle:
            self.is_idle = False
            self.tracked_by.begins_head(self)
        super().data_received(data)
        if self.in_head:
            self.head_size += len(data)
            if self.head_size > _LONGEST_HEAD:
                self.in_head = False
                self.send_400_response(_UNREADABLE)

    def on_message_begin(self) -> None:
        self.in_head, self.head_size = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.in_head = False
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request has one host")  # by RFC 9112, which the parser leaves to us
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """The client is behind. uvicorn would have the request wait for it."""
        self.caught_up.clear()
        self.tracked_by.falls_behind(self)

    def resume_writing(self) -> None:
        self.caught_up.set()
        self.tracked_by.catches_up(self)

    def handle_websocket_upgrade(self, *head: Any) -> None:
        self.ws_protocol_class = partial(Upgraded, self)  # type: ignore[assignment]  # a class or a function
        super().handle_websocket_upgrade(*head)

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read; uvicorn would do so in plain text."""
        is_answering = self.cycle is not None and self.cycle.response_started
        if not is_answering or self.cycle.response_complete:
            body = json.dumps(error_body(_UNREADABLE, 400, code="invalid_http")).encode()
            head = (
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        # In the midst of an answer nothing else can be said.
        self._close_gently()

    def _close_gently(self) -> None:
        """Read on for a moment: closed with something unread, the kernel would take back what was written."""
        self.is_refused = True
        if not self.transport.can_write_eof():  # TLS
            self.close()
            return
        self.transport.write_eof()
        self.loop.call_later(_LAST_WORDS_S, self.close)

    @property
    def unread(self) -> int:
        """Bytes of answers that wait here for the client to take them."""
        return int(self.transport.get_write_buffer_size())

    @property
    def taken(self) -> int:
        """Bytes of answers that the client has taken, give or take the heads."""
        return self.written - self.unread

    @property
    def peer(self) -> str:
        return ":".join(map(str, self.client or ("unknown",)))

    def close(self) -> None:
        """End it once all written data has been sent."""
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    async def serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, as uvicorn calls it for each request."""
        connections = self.tracked_by
        self.open_requests += 1
        self.is_idle = False
        connections.has_request(self)
        body = _TimedBody(self, receive)

        async def counted(message: Message) -> None:
            self.written += len(message.get("body", b""))
            await send(message)
            if not self.caught_up.is_set() or self.transport.is_closing():
                # An answer that does not wait for its client must leave time for others, and for its end.
                await asyncio.sleep(0)

        try:
            await self.caught_up.wait()
            await self.served_app(scope, body.receive, counted)
        finally:
            self.open_requests -= 1
            # A pipelined request has begun before the one before it returns.
            if not self.open_requests:
                self.is_idle = True
                connections.falls_silent(self, connections.limits.idle_s)


class _TimedBody:
    """A request's body with a deadline. If it comes too slowly, its client counts as gone."""

    def __init__(self, connection: Connection, receive: Receive) -> None:
        self._connection = connection
        self._receive = receive
        self._more = True
        self._started = 0.0
        self._received = 0

    async def receive(self) -> Message:
        if not self._more:
            return await self._receive()
        connections = self._connection.tracked_by
        limits = connections.limits
        now = time.monotonic()
        self._started = self._started or now
        slowest = self._started + limits.stall_s + self._received / limits.least_rate
        connections.awaits_body(self._connection, min(now + limits.stall_s, slowest))
        try:
            message = await self._receive()
        finally:
            connections.has_body(self._connection)
        self._received += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        return message


class Upgraded(WebSocketsSansIOProtocol):
    """A connection that became a WebSocket: no sweep ends it, but pings that its client leaves unanswered.

    It reads one message at a time, and waits with sending until its client has taken what was sent before.
    """

    def __init__(self, connection: Connection, **settings: Any) -> None:
        super().__init__(**settings)
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connection.tracked_by.has_request(self._connection)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.tracked_by.ends(self._connection)
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            # uvicorn takes a refusal for an application that has not answered, and logs an error.
            self.handshake_complete = True
