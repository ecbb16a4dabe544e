"""PUSH on an ``ipc://`` endpoint: keeps a connection to one Unix socket, and a queue in front of it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from itertools import islice

from sglang_omni.pipeline.transport.base import ControlPlaneClosed
from sglang_omni.pipeline.transport.ipc.address import socket_path
from sglang_omni.pipeline.transport.ipc.zmtp import Parser, ZmtpError, frame_header, opening
from sglang_omni.pipeline.transport.limits import (
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    QUEUED_BYTES,
    QUEUED_MESSAGES,
)
from sglang_omni.pipeline.transport.send_queue import Linger, WaitingSenders

logger = logging.getLogger(__name__)

# Frames written at a time; the kernel takes many more (IOV_MAX).
_WRITE_FRAMES = 64
# Errors of a peer that is not there, or that is starting.
_NOT_THERE = (FileNotFoundError, ConnectionRefusedError, BlockingIOError)

# A header and a body, never joined: the body may be large.
_Frame = tuple[bytes, bytes]


class IpcPushSocket:
    """Connects to ``endpoint`` and sends; a ``Sender``.

    While the peer is away, messages are queued and attempts to reach it go on. When it is back, every
    message leaves that the kernel had not taken whole. What a dead peer had not read from the kernel's
    buffer is lost.

    Raises:
        ValueError: The endpoint is no path, or one that is too long.
    """

    def __init__(self, endpoint: str) -> None:
        self._path = socket_path(endpoint)
        self._loop = asyncio.get_running_loop()
        # Frames in order, their bytes in all, and the bytes of the first that have left.
        self._queue: deque[_Frame] = deque()
        self._queued_bytes = 0
        self._sent = 0
        self._waiting: WaitingSenders[_Frame] = WaitingSenders()
        self._sock: socket.socket | None = None
        self._parser = Parser("PUSH")
        self._ready = False
        self._writing = False
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = FIRST_RETRY_S
        self._complained = False
        self._closed = False
        self._linger = Linger()
        self._connect()

    async def send(self, message: bytes) -> None:
        if self._closed:
            raise ControlPlaneClosed
        header = frame_header(len(message))
        if self._ready and not self._queue:
            sent = self._write([header, message])
            if sent == len(header) + len(message):
                return
            self._sent = sent
        elif self._sock is None and not self._queue:
            # The peer may be back, and this message should not wait for the next attempt.
            self._retry_s = FIRST_RETRY_S
            self._connect()
        frame = header, message
        if not self._has_room():
            await self._waiting.wait(frame)
            return
        self._enqueue(frame)
        if self._ready and not self._writing:
            self._watch_writable()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.close()
        if self._queue and self._sock is not None:
            self._linger.begin(f"last messages to {self._path}", self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        if not self._linger.end():
            return
        if self._queue:
            logger.warning(
                "%d messages to %s have not left before it was closed", len(self._queue), self._path
            )
            self._queue.clear()
        if self._retry is not None:
            self._retry.cancel()
        self._disconnect()

    # --- connection -------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as exc:
            self._complain(exc)
            self._connect_later()
            return
        try:
            sock.setblocking(False)
            sock.connect(self._path)
            sock.send(opening("PUSH"))
        except OSError as exc:
            sock.close()
            if not isinstance(exc, _NOT_THERE):
                self._complain(exc)
            self._connect_later()
            return
        self._sock = sock
        self._parser = Parser("PUSH")
        self._loop.add_reader(sock, self._read)

    def _connect_later(self) -> None:
        self._retry = self._loop.call_later(self._retry_s, self._connect)
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _complain(self, reason: Exception) -> None:
        """Logs the reason, once until a connection works."""
        if not self._complained:
            self._complained = True
            logger.warning("Cannot send to %s, and goes on trying: %s", self._path, reason)

    def _disconnect(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            if self._writing:
                self._loop.remove_writer(self._sock)
            self._sock.close()
            self._sock = None
        self._ready = self._writing = False
        self._sent = 0

    def _lose(self) -> None:
        """Handles the end of the connection."""
        self._disconnect()
        if self._closed:
            self._leave()
        else:
            self._connect_later()

    def _read(self) -> None:
        """Reads the peer's handshake, and later its end."""
        assert self._sock is not None
        try:
            data = self._sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        self._parser.feed(data)
        try:
            while self._parser.next_message() is not None:
                pass  # a PULL socket has nothing to say
        except ZmtpError as exc:
            self._complain(exc)
            self._lose()
            return
        if self._parser.ready and not self._ready:
            self._ready, self._complained = True, False
            self._retry_s = FIRST_RETRY_S
            if self._queue:
                self._watch_writable()
                self._flush()

    # --- messages ---------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return len(self._queue) < QUEUED_MESSAGES and self._queued_bytes < QUEUED_BYTES

    def _enqueue(self, frame: _Frame) -> None:
        self._queue.append(frame)
        self._queued_bytes += _size(frame)

    def _write(self, buffers: list[bytes | memoryview]) -> int:
        """Returns how many of their bytes the kernel has taken."""
        assert self._sock is not None
        try:
            return self._sock.sendmsg(buffers)
        except BlockingIOError:
            return 0
        except OSError:
            self._lose()
            return 0

    def _watch_writable(self) -> None:
        assert self._sock is not None
        self._writing = True
        self._loop.add_writer(self._sock, self._flush)

    def _flush(self) -> None:
        """Writes as much of the queue as the kernel takes, and fills the queue from the waiting senders."""
        buffers: list[bytes | memoryview] = [
            part for frame in islice(self._queue, _WRITE_FRAMES) for part in frame
        ]
        header = len(buffers[0])
        if self._sent < header:
            buffers[0] = buffers[0][self._sent :]
        else:
            buffers[:2] = [memoryview(buffers[1])[self._sent - header :]]
        sent = self._sent + self._write(buffers)
        if not self._ready:
            return  # the connection broke
        while self._queue and sent >= (size := _size(self._queue[0])):
            del self._queue[0]
            self._queued_bytes -= size
            sent -= size
        self._sent = sent
        self._waiting.admit(self._has_room, self._enqueue)
        if not self._queue:
            assert self._sock is not None
            self._loop.remove_writer(self._sock)
            self._writing = False
            if self._closed:
                self._leave()


def _size(frame: _Frame) -> int:
    header, body = frame
    return len(header) + len(body)
