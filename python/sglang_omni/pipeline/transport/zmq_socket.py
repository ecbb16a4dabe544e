"""Sockets that libzmq drives in its own threads: for ``inproc://``, for aborts, and beneath ``tcp/pull.py``.

One readiness event drains a batch of messages, and a send that does not block costs no task and no
future. libzmq's threads make each hop some 70 us longer than one over ``ipc/``.
"""

from __future__ import annotations

import asyncio

import zmq

from sglang_omni.pipeline.transport.base import ControlPlaneClosed, Deliver
from sglang_omni.pipeline.transport.limits import (
    BATCH,
    FIRST_RETRY_S,
    LINGER_S,
    LONGEST_RETRY_S,
    QUEUED_MESSAGES,
)


def zmq_socket(kind: int) -> zmq.Socket[bytes]:
    """A socket of this kind, neither bound nor connected."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.linger = int(LINGER_S * 1000)
    socket.reconnect_ivl = int(FIRST_RETRY_S * 1000)
    socket.reconnect_ivl_max = int(LONGEST_RETRY_S * 1000)
    return socket


def state_fd(socket: zmq.Socket[bytes]) -> int:
    """The descriptor that becomes readable when the socket's state may have changed (edge-triggered)."""
    return int(socket.getsockopt(zmq.FD))


class ZmqReceiver:
    """Takes over a socket that is bound or connected; a ``Receiver``."""

    def __init__(self, socket: zmq.Socket[bytes], deliver: Deliver) -> None:
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._socket = socket
        self._deliver = deliver
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._fd = state_fd(socket)
        self._loop.add_reader(self._fd, self._fill)
        # No edge comes for what arrived before the descriptor was watched.
        self._loop.call_soon(self._fill)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._fill()

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close()

    def _fill(self) -> None:
        """Delivers the messages that have arrived, a batch at most."""
        for _ in range(BATCH):
            if self._socket.closed or self._paused:
                return
            try:
                goes_on = self._take()
            except zmq.Again:
                return
            if not goes_on:
                self._paused = True
        # No new edge comes for what is still queued in the socket.
        self._loop.call_soon(self._fill)

    def _take(self) -> bool:
        """Delivers the next message; returns False to be paused. Raises zmq.Again if there is none."""
        return self._deliver(self._socket.recv(zmq.NOBLOCK))


class ZmqSender:
    """A PUSH socket to one peer; a ``Sender``."""

    def __init__(self, endpoint: str) -> None:
        self._socket = zmq_socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        self._socket.connect(endpoint)
        self._loop = asyncio.get_running_loop()
        self._fd = state_fd(self._socket)
        self._full = asyncio.Lock()
        self._waiting = 0
        self._writable: asyncio.Future[None] | None = None

    async def send(self, message: bytes) -> None:
        if not self._waiting and self._try_send(message):
            return
        self._waiting += 1
        try:
            async with self._full:
                while not self._try_send(message):
                    await self._until_writable()
        finally:
            self._waiting -= 1

    def close(self) -> None:
        if self._writable is not None:
            self._loop.remove_reader(self._fd)
        self._socket.close()
        self._check()

    def _try_send(self, message: bytes) -> bool:
        if self._socket.closed:
            raise ControlPlaneClosed
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    async def _until_writable(self) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_reader(self._fd, self._check)
        try:
            self._check()
            await self._writable
        finally:
            self._writable = None
            if not self._socket.closed:
                self._loop.remove_reader(self._fd)

    def _check(self) -> None:
        if self._writable is None or self._writable.done():
            return
        if self._socket.closed or self._socket.poll(0, zmq.POLLOUT):
            self._writable.set_result(None)
