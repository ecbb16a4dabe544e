"""Publishes aborts over ``tcp://`` and within a process, by libzmq.

Not over ``ipc://``, where libzmq ends the process if it lacks a descriptor for a connection; over ``tcp://``
it goes on, and encrypts.
"""

from __future__ import annotations

import asyncio
from collections import deque

import zmq

from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.limits import QUEUED_ABORTS, REMEMBERED_ABORTS
from sglang_omni.pipeline.transport.monitor import RefusalLog
from sglang_omni.pipeline.transport.tcp.sockets import SCHEME, bind_tcp
from sglang_omni.pipeline.transport.zmq_socket import state_fd, zmq_socket


class Publisher:
    """Binds ``endpoint`` and sends to all of its subscribers; never blocks.

    It repeats the latest messages to those that subscribe late.

    Attributes:
        endpoint: Where it is bound.

    Raises:
        ValueError: The endpoint is ``tcp://`` and there are no keys.
        zmq.ZMQError: The endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, keys: RunKeys | None) -> None:
        self._recent: deque[bytes] = deque(maxlen=REMEMBERED_ABORTS)
        # XPUB is PUB that also reports subscriptions, all of them in verbose mode.
        self._socket = zmq_socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_ABORTS)
        self.endpoint = endpoint
        self._refusals: RefusalLog | None = None
        try:
            if endpoint.startswith(SCHEME):
                self.endpoint = bind_tcp(self._socket, endpoint, keys)
                self._refusals = RefusalLog(self._socket, self.endpoint)
            else:
                self._socket.bind(endpoint)
        except BaseException:
            self._socket.close()
            raise
        self._fd = state_fd(self._socket)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._greet)

    def send(self, message: bytes) -> None:
        """Sends to every subscriber, and again to later ones. Does nothing after ``close``."""
        if self._socket.closed:
            return
        self._recent.append(message)
        self._socket.send(message, zmq.NOBLOCK)
        self._greet()

    def close(self) -> None:
        if not self._socket.closed:
            if self._refusals is not None:
                self._refusals.close()
            self._loop.remove_reader(self._fd)
            self._socket.close()

    def _greet(self) -> None:
        newcomers = False
        while not self._socket.closed:
            try:
                newcomers |= self._socket.recv(zmq.NOBLOCK).startswith(b"\x01")
            except zmq.Again:
                break
        if newcomers:
            # They missed these. The other subscribers get them twice: aborts are idempotent.
            for message in self._recent:
                self._socket.send(message, zmq.NOBLOCK)
