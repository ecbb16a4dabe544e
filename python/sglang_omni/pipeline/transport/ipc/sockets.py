"""PUSH and PULL on ``ipc://`` endpoints: Unix sockets that the event loop drives itself.

A PUSH socket keeps a connection to one endpoint, and a queue in front of it. A PULL socket binds an
endpoint, and reads from its peers in turns.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from itertools import islice

from sglang_omni.pipeline.transport.base import ControlPlaneClosed, Deliver
from sglang_omni.pipeline.transport.ipc.address import socket_path
from sglang_omni.pipeline.transport.ipc.listener import IpcListener
from sglang_omni.pipeline.transport.ipc.reconnecting import Reconnecting
from sglang_omni.pipeline.transport.ipc.zmtp import Parser, ZmtpError, frame_header, opening
from sglang_omni.pipeline.transport.limits import (
    BATCH,
    FIRST_RETRY_S,
    QUEUED_BYTES,
    QUEUED_MESSAGES,
)
from sglang_omni.pipeline.transport.send_queue import Linger, WaitingSenders

logger = logging.getLogger(__name__)

# Frames written at a time; the kernel takes many more (IOV_MAX).
_WRITE_FRAMES = 64
# A header and a body, never joined: the body may be large.
_Frame = tuple[bytes, bytes]

# Bytes read from a connection at a time; and while a longer message is incomplete.
_READ_SIZE = 128 << 10
_LONGEST_READ = 1 << 20


class IpcPushSocket(Reconnecting):
    """Connects to ``endpoint`` and sends; a ``Sender``.

    While the peer is away, messages are queued and attempts to reach it go on. When it is back, every
    message leaves that the kernel had not taken whole. What a dead peer had not read from the kernel's
    buffer is lost.

    Raises:
        ValueError: The endpoint is no path, or one that is too long.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, "PUSH")
        # Frames in order, their bytes in all, and the bytes of the first that have left.
        self._queue: deque[_Frame] = deque()
        self._queued_bytes = 0
        self._sent = 0
        self._waiting: WaitingSenders[_Frame] = WaitingSenders()
        self._writing = False
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
        self._stop_trying()
        self._disconnect()

    # --- connection -------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        if self._writing and self._sock is not None:
            self._loop.remove_writer(self._sock)
        super()._disconnect()
        self._writing = False
        self._sent = 0

    def _lose(self) -> None:
        """Handles the end of the connection."""
        if self._closed:
            self._disconnect()
            self._leave()
        else:
            super()._lose()

    def _on_ready(self) -> None:
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


class _Peer:
    """A connection to an IpcPullSocket."""

    __slots__ = ("is_due", "parser", "sock", "watched")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parser = Parser("PULL")
        self.watched = True
        # True if it waits for its turn, in ``_due``.
        self.is_due = False


class IpcPullSocket:
    """Binds ``endpoint`` and delivers what its peers send; a ``Receiver``.

    Peers that have sent something take turns of at most ``BATCH`` messages. A peer that breaks the protocol
    loses its connection.

    Raises:
        ValueError: The endpoint is no path, or one that is too long.
        OSError: The endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, deliver: Deliver) -> None:
        self.endpoint = endpoint
        self._deliver = deliver
        self._path = socket_path(endpoint)
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._peers: set[_Peer] = set()
        # Peers that sent more than a batch, or anything during a pause; the next one first.
        self._due: deque[_Peer] = deque()
        self._turn_is_coming = False
        self._paused = False
        self._closed = False
        self._listener = IpcListener(self._path, self._take)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._give_turn()

    def close(self) -> None:
        """Closes all connections and removes the file, unless another socket has taken its place."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        for peer in list(self._peers):
            self._drop(peer)

    # --- connections ------------------------------------------------------------------------------

    def _take(self, sock: socket.socket) -> None:
        peer = _Peer(sock)
        self._peers.add(peer)
        self._loop.add_reader(sock, self._read, peer)
        try:
            sock.send(opening("PULL"))
        except OSError:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if peer.watched:
            self._loop.remove_reader(peer.sock)
        if peer.is_due:
            self._due.remove(peer)
        self._peers.discard(peer)
        peer.sock.close()

    # --- messages ---------------------------------------------------------------------------------

    def _read(self, peer: _Peer) -> None:
        if self._paused:
            # Not before: most pauses end before more comes, and then cost no system call.
            self._loop.remove_reader(peer.sock)
            peer.watched = False
            self._wait_for_turn(peer)
        elif not peer.is_due:
            self._receive(peer)

    def _receive(self, peer: _Peer) -> None:
        missing = peer.parser.missing
        try:
            if missing > _READ_SIZE:
                data = peer.sock.recv(min(missing, _LONGEST_READ))
            else:
                data = bytes(self._buffer[: peer.sock.recv_into(self._buffer)])
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            peer.parser.feed(data)
            self._deliver_from(peer)
        else:
            self._drop(peer)

    def _deliver_from(self, peer: _Peer) -> int:
        """Delivers what has been read from this peer, a batch at most. Returns the number of messages."""
        for count in range(BATCH):
            try:
                message = peer.parser.next_message()
            except ZmtpError as exc:
                logger.warning("Closed a connection to %s: %s", self._path, exc)
                self._drop(peer)
                return count
            if message is None:
                return count
            if not self._deliver(message):
                self._paused = True
            if self._closed:
                return count
            if self._paused:
                break
        self._wait_for_turn(peer)
        return count + 1

    def _wait_for_turn(self, peer: _Peer) -> None:
        if not peer.is_due:
            peer.is_due = True
            self._due.append(peer)
        self._give_turn_soon()

    def _give_turn_soon(self) -> None:
        if not (self._paused or self._turn_is_coming):
            self._turn_is_coming = True
            self._loop.call_soon(self._give_turn_now)

    def _give_turn_now(self) -> None:
        self._turn_is_coming = False
        self._give_turn()

    def _give_turn(self) -> None:
        """Serves the next peer that is due: what has been read from it, else what has come."""
        if self._paused or not self._due:
            return
        peer = self._due.popleft()
        peer.is_due = False
        if not peer.watched:
            peer.watched = True
            self._loop.add_reader(peer.sock, self._read, peer)
        if self._deliver_from(peer) == 0 and peer in self._peers:
            self._receive(peer)
        if self._due:
            self._give_turn_soon()
