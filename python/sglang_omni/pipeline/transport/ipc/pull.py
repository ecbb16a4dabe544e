"""PULL on an ``ipc://`` endpoint: binds a Unix socket, and reads from its peers in turns."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections import deque

from sglang_omni.pipeline.transport.base import Deliver
from sglang_omni.pipeline.transport.ipc.address import socket_path
from sglang_omni.pipeline.transport.ipc.zmtp import Parser, ZmtpError, opening
from sglang_omni.pipeline.transport.limits import BATCH

logger = logging.getLogger(__name__)

# Bytes read from a connection at a time; and while a longer message is incomplete.
_READ_SIZE = 128 << 10
_LONGEST_READ = 1 << 20
_WAITING_CONNECTIONS = 128
# Seconds that new connections wait if there is no descriptor or memory for them.
_ACCEPT_PAUSE_S = 0.25


class _Peer:
    """A connection to an IpcPullSocket."""

    __slots__ = ("is_due", "parser", "sock", "watched")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parser = Parser("PULL")
        self.watched = True
        # Whether it waits for its turn, in ``_due``.
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
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._bind()
        except OSError:
            self._listener.close()
            raise
        self._loop.add_reader(self._listener, self._accept)

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
        """Binds in place of an earlier socket: a killed process leaves its file behind."""
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


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
