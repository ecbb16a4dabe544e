"""Reports a libzmq socket's connection events to the event loop, and logs the connections it refused."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from sglang_omni.pipeline.transport.zmq_socket import state_fd

logger = logging.getLogger(__name__)

# Seconds between two log lines, equal to the handshake's timeout: a connection that was accepted before the
# previous interval and is still not authenticated counts as refused.
REFUSALS_S = 10.0

_numbers = itertools.count()


class SocketMonitor:
    """Calls ``on_event`` with each of the ``events`` of ``socket``. Close it before the socket."""

    def __init__(self, socket: zmq.Socket[bytes], events: int, on_event: Callable[[zmq.Event], None]) -> None:
        address = f"inproc://monitor-{next(_numbers)}"
        socket.monitor(address, events)
        self._watched = socket
        self._on_event = on_event
        self._events: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self._events.linger = 0
        # No limit: a full queue would block the thread that drives all sockets.
        self._events.setsockopt(zmq.RCVHWM, 0)
        self._events.connect(address)
        self._loop = asyncio.get_running_loop()
        self._fd = state_fd(self._events)
        self._loop.add_reader(self._fd, self._read)
        self._loop.call_soon(self._read)

    def close(self) -> None:
        if not self._events.closed:
            self._loop.remove_reader(self._fd)
            self._watched.monitor(None, 0)
            self._events.close()

    def _read(self) -> None:
        while not self._events.closed:
            try:
                frames = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_event(zmq.Event(parse_monitor_message(frames)["event"]))


class RefusalLog:
    """Logs how many connections a socket has refused, at most once in ``REFUSALS_S``."""

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        self._endpoint = endpoint
        # Accepted connections that are not authenticated: of this interval, and of the one before.
        self._recent = self._older = 0
        self._wrong_key = 0
        self._timer: asyncio.TimerHandle | None = None
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        self._monitor = SocketMonitor(socket, events, self._on_event)

    def close(self) -> None:
        self._monitor.close()
        if self._timer is not None:
            self._timer.cancel()

    def _on_event(self, event: zmq.Event) -> None:
        match event:
            case zmq.Event.ACCEPTED:
                self._recent += 1
                self._check_later()
            case zmq.Event.HANDSHAKE_FAILED_AUTH:
                self._wrong_key += 1
            case zmq.Event.HANDSHAKE_SUCCEEDED if self._recent:
                self._recent -= 1
            case zmq.Event.HANDSHAKE_SUCCEEDED if self._older:
                self._older -= 1

    def _check_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REFUSALS_S, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._older:
            logger.warning(
                "Refused %d connections to %s: they did not show the run's keys (%d showed others). "
                "Something that is no part of this run can reach the port",
                self._older,
                self._endpoint,
                self._wrong_key,
            )
            self._wrong_key = 0
        self._older, self._recent = self._recent, 0
        if self._older:
            self._check_later()
