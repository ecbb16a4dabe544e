"""PUSH and PULL on ``ipc://`` endpoints: ZMTP over Unix sockets, driven by the event loop itself.

libzmq would hand every message from its caller to a thread of its own and back on the other side; that
takes longer than the kernel needs to carry it. These sockets speak the same protocol, so libzmq's PUSH
and PULL can be at the other end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections import deque
from itertools import islice

from sglang_omni.pipeline.message_socket import (
    BATCH,
    FIRST_RETRY_S,
    LINGER_S,
    LONGEST_RETRY_S,
    QUEUED_MESSAGES,
    ControlPlaneClosed,
    Deliver,
)
from sglang_omni.pipeline.zmtp import Parser, ZmtpError, frame_header, opening

logger = logging.getLogger(__name__)

SCHEME = "ipc://"
# What ``sockaddr_un`` has room for.
_LONGEST_PATH = 107
# Bytes taken from a connection at a time, and of a message that is larger.
_READ_SIZE = 128 << 10
_LONGEST_READ = 1 << 20
# Bytes on their way to one peer, from which on its senders wait; one message may be larger.
_QUEUED_BYTES = 16 << 20
# Frames written at a time, well below what the kernel takes.
_WRITE_FRAMES = 64
_WAITING_CONNECTIONS = 128
# Without a descriptor or memory to spare, new connections are left waiting for so long.
_ACCEPT_PAUSE_S = 0.25
# A peer that is not there, or busy being born.
_NOT_THERE = (FileNotFoundError, ConnectionRefusedError, BlockingIOError)


# A header and a body: never joined, as a body may be large.
_Frame = tuple[bytes, bytes]


def socket_path(endpoint: str) -> str:
    """The file of an ``ipc://`` endpoint. Raises ValueError where it cannot be a Unix socket's."""
    path = endpoint.removeprefix(SCHEME)
    if not path or path[0] in "@*":
        raise ValueError(f"{endpoint!r} names no file: use ipc:// and the path of one")
    if (size := len(os.fsencode(path))) > _LONGEST_PATH:
        raise ValueError(
            f"the path of {endpoint!r} has {size} bytes, more than the {_LONGEST_PATH} that a Unix socket "
            "allows: use a shorter folder"
        )
    return path


class _Peer:
    """A connection somebody made to a PullSocket."""

    __slots__ = ("is_due", "parser", "sock", "watched")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parser = Parser("PULL")
        self.watched = True
        # It waits for its turn.
        self.is_due = False


class PullSocket:
    """Binds ``endpoint`` and delivers what its peers send; a ``Receiver``.

    Every peer that has sent something gets its turn, at most a batch of messages at a time. A peer that
    breaks the protocol loses its connection.

    Raises:
        ValueError: The endpoint is not the path of a file, or too long.
        OSError: It cannot be bound.
    """

    def __init__(self, endpoint: str, deliver: Deliver) -> None:
        self._deliver = deliver
        self._path = socket_path(endpoint)
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._peers: set[_Peer] = set()
        # Peers that had more than a batch, or something while it was paused. The next one first.
        self._due: deque[_Peer] = deque()
        self._turn_is_coming = False
        self._paused = False
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._bind()
        except OSError:
            self._listener.close()
            raise
        self._loop.add_reader(self._listener, self._accept)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def paused(self) -> bool:
        return self._paused

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
        self._loop.remove_reader(self._listener)
        self._listener.close()
        try:
            if _identity(self._path) == self._file:
                os.unlink(self._path)
        except FileNotFoundError:
            pass
        for peer in list(self._peers):
            self._drop(peer)

    # --- connections ------------------------------------------------------------------------------

    def _bind(self) -> None:
        """In place of whoever had the endpoint before: a killed process leaves its file behind."""
        try:
            if stat.S_ISSOCK(os.stat(self._path).st_mode):
                os.unlink(self._path)
        except FileNotFoundError:
            pass
        self._listener.bind(self._path)
        self._file = _identity(self._path)
        self._listener.listen(_WAITING_CONNECTIONS)

    def _accept(self) -> None:
        for _ in range(_WAITING_CONNECTIONS):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # the peer has left already
            except OSError as exc:
                logger.error("%s takes no connections for %g s: %s", self._path, _ACCEPT_PAUSE_S, exc)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again)
                return
            sock.setblocking(False)
            peer = _Peer(sock)
            self._peers.add(peer)
            self._loop.add_reader(sock, self._read, peer)
            try:
                sock.send(opening("PULL"))
            except OSError:
                self._drop(peer)

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

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
            # Only now: most pauses are over before more comes, and then they cost no system call.
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
        """Delivers what has been read of this peer, a batch at most. How many messages that was."""
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
        """The next peer that is due goes on: with what has been read of it, or else with what has come."""
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


class PushSocket:
    """Connects to ``endpoint`` and sends; a ``Sender``.

    While the peer is away messages are queued, and attempts to reach it go on. Once it is back all that
    was not handed to the kernel leaves, a message of which only a part had left as a whole. What a dead peer
    had not read of the kernel's buffer is lost.

    Raises:
        ValueError: The endpoint is not the path of a file, or too long.
    """

    def __init__(self, endpoint: str) -> None:
        self._path = socket_path(endpoint)
        self._loop = asyncio.get_running_loop()
        # Frames in the order they leave in, what they take, and how much of the first has left.
        self._queue: deque[_Frame] = deque()
        self._queued_bytes = 0
        self._sent = 0
        # Frames of senders that wait for room in the queue.
        self._waiting: deque[tuple[_Frame, asyncio.Future[None]]] = deque()
        self._sock: socket.socket | None = None
        self._parser = Parser("PUSH")
        self._ready = False
        self._writing = False
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = FIRST_RETRY_S
        self._complained = False
        self._closed = False
        self._left: asyncio.Future[None] = self._loop.create_future()
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
            # It may be back by now, and this message is in more of a hurry than the attempts are.
            self._retry_s = FIRST_RETRY_S
            self._connect()
        frame = header, message
        if not self._has_room():
            room = self._loop.create_future()
            self._waiting.append((frame, room))
            await room
            return
        self._enqueue(frame)
        if self._ready and not self._writing:
            self._watch_writable()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _, room in self._waiting:
            if not room.done():
                room.set_exception(ControlPlaneClosed())
        self._waiting.clear()
        if self._queue and self._sock is not None:
            self._loop.call_later(LINGER_S, self._leave)
            self._loop.create_task(self._linger(), name=f"last messages to {self._path}")
        else:
            self._leave()

    async def _linger(self) -> None:
        """Keeps ``asyncio.run`` from ending before the last messages have left."""
        while not self._left.done():
            try:
                await asyncio.shield(self._left)
            except asyncio.CancelledError:
                pass  # it ends by itself, soon

    def _leave(self) -> None:
        if self._left.done():
            return
        self._left.set_result(None)
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
        """Once until the next connection that works."""
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
        """The connection has ended."""
        self._disconnect()
        if self._closed:
            self._leave()
        else:
            self._connect_later()

    def _read(self) -> None:
        """The peer's handshake, and later its end."""
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
        return len(self._queue) < QUEUED_MESSAGES and self._queued_bytes < _QUEUED_BYTES

    def _enqueue(self, frame: _Frame) -> None:
        self._queue.append(frame)
        self._queued_bytes += _size(frame)

    def _write(self, buffers: list[bytes | memoryview]) -> int:
        """How many of their bytes the kernel has taken."""
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
        """Writes what the kernel takes of the queue, and fills it up from those that wait."""
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
        while self._waiting and self._has_room():
            frame, room = self._waiting.popleft()
            if not room.done():  # the sender has not given up
                self._enqueue(frame)
                room.set_result(None)
        if not self._queue:
            assert self._sock is not None
            self._loop.remove_writer(self._sock)
            self._writing = False
            if self._closed:
                self._leave()


def _size(frame: _Frame) -> int:
    header, body = frame
    return len(header) + len(body)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
