"""The receiving end of ``tcp://``: confirms messages, and takes each once over any number of connections."""

from __future__ import annotations

import asyncio
import logging
import secrets

import zmq

from sglang_omni.pipeline.transport.base import Deliver
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.limits import CONFIRM_EVERY, CONFIRM_S, QUEUED_MESSAGES
from sglang_omni.pipeline.transport.monitor import RefusalLog
from sglang_omni.pipeline.transport.tcp.link import (
    EXPECTS,
    HELLO,
    HELLO_MAGIC,
    NOTHING_MORE,
)
from sglang_omni.pipeline.transport.tcp.sockets import bind_tcp
from sglang_omni.pipeline.transport.zmq_socket import ZmqReceiver, zmq_socket

logger = logging.getLogger(__name__)


class _Source:
    """A sender, over one connection after another."""

    __slots__ = ("connections", "expected", "unconfirmed")

    def __init__(self, expected: int) -> None:
        # The number of the next message to deliver.
        self.expected = expected
        self.unconfirmed = 0
        # Its last two connections, the newest last: on the older one, messages may still be unread.
        self.connections: list[bytes] = []


class _Connection:
    """One connection of a sender; ``number`` is that of the next message on it."""

    __slots__ = ("number", "source")

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.number = source.expected


class TcpPullSocket(ZmqReceiver):
    """Binds ``endpoint``, which may end in ``:*``, and delivers what peers send; a ``Receiver``.

    Raises:
        ValueError: There are no keys.
        zmq.ZMQError: The endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, keys: RunKeys | None, deliver: Deliver) -> None:
        self._name = secrets.token_bytes(16)
        # By the sender's name; and by libzmq's name for the connection.
        self._sources: dict[bytes, _Source] = {}
        self._connections: dict[bytes, _Connection] = {}
        # Sources with messages to confirm.
        self._unconfirmed: set[_Source] = set()
        self._confirming: asyncio.TimerHandle | None = None
        socket = zmq_socket(zmq.ROUTER)
        socket.setsockopt(zmq.RCVHWM, 2 * QUEUED_MESSAGES)
        try:
            bind_tcp(socket, endpoint, keys)
        except BaseException:
            socket.close()
            raise
        super().__init__(socket, deliver)
        self._refusals = RefusalLog(socket, self.endpoint)

    def close(self) -> None:
        if self._socket.closed:
            return
        self._confirm()
        for source in self._sources.values():
            self._send(source.connections[-1], NOTHING_MORE)
        self._refusals.close()
        super().close()

    def _take(self) -> bool:
        name, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
        connection = self._connections.get(name)
        if connection is None:
            self._greet(name, frames)
            return True
        number, source = connection.number, connection.source
        connection.number += 1
        if number != source.expected:
            return True  # It came over an earlier connection already.
        source.expected += 1
        goes_on = True
        if len(frames) != 1:
            logger.warning("Dropped a message of %d parts: every message is one part", len(frames))
        else:
            goes_on = self._deliver(frames[0])
        source.unconfirmed += 1
        self._unconfirmed.add(source)
        if source.unconfirmed >= CONFIRM_EVERY:
            self._confirm()
        elif self._confirming is None:
            self._confirming = self._loop.call_later(CONFIRM_S, self._confirm)
        return goes_on

    def _greet(self, name: bytes, frames: list[bytes]) -> None:
        if len(frames) != 1 or len(frames[0]) != HELLO.size or not frames[0].startswith(HELLO_MAGIC):
            # It has the run's keys, but does not follow the protocol.
            logger.warning("Dropped a message to %s from a peer that did not say who it is", self.endpoint)
            return
        _, sender, first, first_unsent = HELLO.unpack(frames[0])
        source = self._sources.get(sender)
        if source is None:
            # Earlier messages went to a predecessor of this process.
            source = self._sources[sender] = _Source(first_unsent)
        # Messages before ``first`` were given up by the sender.
        source.expected = max(source.expected, first)
        self._connections[name] = _Connection(source)
        source.connections.append(name)
        for earlier in source.connections[:-2]:
            del self._connections[earlier]
        del source.connections[:-2]
        self._send(name, source.expected)

    def _confirm(self) -> None:
        if self._confirming is not None:
            self._confirming.cancel()
            self._confirming = None
        if self._socket.closed:
            return
        for source in self._unconfirmed:
            source.unconfirmed = 0
            self._send(source.connections[-1], source.expected)
        self._unconfirmed.clear()
        # Sending may have consumed the edge by which libzmq signals messages.
        self._loop.call_soon(self._fill)

    def _send(self, connection: bytes, expected: int) -> None:
        # libzmq drops it if the connection is gone.
        self._socket.send_multipart([connection, EXPECTS.pack(self._name, expected)], zmq.NOBLOCK)
