"""PUB and SUB on ``ipc://`` endpoints: Unix sockets that the event loop drives itself."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque

from sglang_omni.pipeline.transport.base import Deliver
from sglang_omni.pipeline.transport.ipc.address import socket_path
from sglang_omni.pipeline.transport.ipc.listener import IpcListener
from sglang_omni.pipeline.transport.ipc.receiving import received
from sglang_omni.pipeline.transport.ipc.reconnecting import Reconnecting
from sglang_omni.pipeline.transport.ipc.zmtp import Parser, ZmtpError, frame_header, opening
from sglang_omni.pipeline.transport.limits import QUEUED_ABORTS, REMEMBERED_ABORTS

logger = logging.getLogger(__name__)

# A message to the publisher: to subscribe to the topic that follows, here to all.
_SUBSCRIBE = b"\x01"


class IpcPublisher:
    """Binds ``endpoint`` and sends to all of its subscribers; never blocks.

    It repeats the latest messages to those that subscribe late.

    Raises:
        ValueError: The endpoint is no path, or one that is too long.
        OSError: The endpoint cannot be bound.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.recent: deque[bytes] = deque(maxlen=REMEMBERED_ABORTS)
        self._subscribers: set[_Subscriber] = set()
        self._closed = False
        self._listener = IpcListener(socket_path(endpoint), self._take)

    def send(self, message: bytes) -> None:
        """Sends to every subscriber, and again to later ones. Does nothing after ``close``."""
        if self._closed:
            return
        frame = frame_header(len(message)) + message
        self.recent.append(frame)
        for subscriber in list(self._subscribers):
            subscriber.send(frame)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._listener.close()
            for subscriber in list(self._subscribers):
                subscriber.close()

    def forget(self, subscriber: _Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def _take(self, sock: socket.socket) -> None:
        self._subscribers.add(_Subscriber(self, sock))


class _Subscriber:
    """One connection of a publisher."""

    def __init__(self, publisher: IpcPublisher, sock: socket.socket) -> None:
        self._publisher = publisher
        self._sock = sock
        self._parser = Parser("PUB")
        self._subscribed = False
        # Frames in order, and the bytes of the first that have left.
        self._queue: deque[bytes] = deque([opening("PUB")])
        self._sent = 0
        self._writing = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)
        self._loop.call_soon(self._flush)

    def send(self, frame: bytes) -> None:
        if self._subscribed and len(self._queue) < QUEUED_ABORTS:
            self._queue.append(frame)
            if not self._writing:
                self._flush()

    def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._publisher.forget(self)
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._writing = False
        self._sock.close()

    def _read(self) -> None:
        data = received(self._sock)
        if data is None:
            return
        if not data:
            self.close()
            return
        self._parser.feed(data)
        try:
            while (message := self._parser.next_message()) is not None:
                if message.startswith(_SUBSCRIBE) and not self._subscribed:
                    self._subscribed = True
                    for frame in self._publisher.recent:
                        self.send(frame)
        except ZmtpError as exc:
            logger.warning("Closed a connection to %s: %s", self._publisher.endpoint, exc)
            self.close()

    def _flush(self) -> None:
        """Writes as much of the queue as the kernel takes."""
        while self._queue and self._sock.fileno() >= 0:
            try:
                self._sent += self._sock.send(memoryview(self._queue[0])[self._sent :])
            except BlockingIOError:
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._sock, self._flush)
                return
            except OSError:
                self.close()
                return
            if self._sent == len(self._queue[0]):
                self._queue.popleft()
                self._sent = 0
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)


class IpcSubscriber(Reconnecting):
    """Connects to ``endpoint`` and delivers what is published there; a ``Receiver``."""

    def __init__(self, endpoint: str, deliver: Deliver) -> None:
        super().__init__(endpoint, "SUB", frame_header(len(_SUBSCRIBE)) + _SUBSCRIBE)
        self.endpoint = endpoint
        self._deliver = deliver
        self._paused = False
        self._connect()

    def pause(self) -> None:
        self._paused = True
        if self._sock is not None:
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        self._paused = False
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._read)

    def close(self) -> None:
        self._stop_trying()
        self._disconnect()

    def _on_message(self, message: bytes) -> None:
        if not self._deliver(message) and not self._paused:
            self.pause()
