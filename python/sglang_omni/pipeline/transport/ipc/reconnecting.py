"""A connection to a path that is made again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import socket

from sglang_omni.pipeline.transport.ipc.address import socket_path
from sglang_omni.pipeline.transport.ipc.receiving import received
from sglang_omni.pipeline.transport.ipc.zmtp import Parser, SocketType, ZmtpError, opening
from sglang_omni.pipeline.transport.limits import FIRST_RETRY_S, LONGEST_RETRY_S
from sglang_omni.supervision.forks import own

logger = logging.getLogger(__name__)

# Errors of a peer that is not there, or that is starting.
_NOT_THERE = (FileNotFoundError, ConnectionRefusedError, BlockingIOError)


class Reconnecting:
    """The connecting end of a socket; ``_connect`` begins.

    Args:
        endpoint: Where the peer listens, now or later.
        socket_type: The type of this end.
        first: What it sends after the handshake.

    Raises:
        ValueError: The endpoint is no path, or one that is too long.
    """

    def __init__(self, endpoint: str, socket_type: SocketType, first: bytes = b"") -> None:
        self._path = socket_path(endpoint)
        self._loop = asyncio.get_running_loop()
        self._socket_type: SocketType = socket_type
        self._first = first
        self._sock: socket.socket | None = None
        self._parser = Parser(socket_type)
        self._ready = False
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = FIRST_RETRY_S
        self._complained = False

    def _on_ready(self) -> None:
        """Called once the handshake of a connection is complete."""

    def _on_message(self, message: bytes) -> None:
        """Called with each message of the peer's."""

    def _connect(self) -> None:
        self._stop_trying()
        try:
            sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        except OSError as exc:
            self._complain(exc)
            self._connect_later()
            return
        try:
            sock.setblocking(False)
            sock.connect(self._path)
            sock.send(opening(self._socket_type) + self._first)
        except OSError as exc:
            sock.close()
            if not isinstance(exc, _NOT_THERE):
                self._complain(exc)
            self._connect_later()
            return
        self._sock = sock
        self._parser = Parser(self._socket_type)
        self._loop.add_reader(sock, self._read)

    def _connect_later(self) -> None:
        self._retry = self._loop.call_later(self._retry_s, self._connect)
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _stop_trying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _complain(self, reason: Exception) -> None:
        """Logs the reason, once until a connection works."""
        if not self._complained:
            self._complained = True
            logger.warning("Cannot reach %s, and goes on trying: %s", self._path, reason)

    def _disconnect(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        self._ready = False

    def _lose(self) -> None:
        """Handles the end of the connection."""
        self._disconnect()
        self._connect_later()

    def _read(self) -> None:
        """Reads the peer's handshake, its messages, and its end."""
        assert self._sock is not None
        data = received(self._sock)
        if data is None:
            return
        if not data:
            self._lose()
            return
        self._parser.feed(data)
        try:
            while (message := self._parser.next_message()) is not None:
                self._on_message(message)
        except ZmtpError as exc:
            self._complain(exc)
            self._lose()
            return
        if self._parser.ready and not self._ready:
            self._ready, self._complained = True, False
            self._retry_s = FIRST_RETRY_S
            self._on_ready()
