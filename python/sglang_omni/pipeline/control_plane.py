"""The control plane: ZMQ PUSH/PULL for work and results, PUB/SUB for aborts.

Sockets are plain ``zmq.Socket`` objects driven by the event loop's own readers. One readiness event
drains a batch of messages, and a send that does not block costs no task and no future, so a hop spends
its time in the socket and not in the loop. All of it belongs to the thread of the running loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import zmq

from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    Message,
    ProgressMessage,
    ShutdownMessage,
    StreamMessage,
    codec,
    parse_message,
)

logger = logging.getLogger(__name__)

# Messages taken from one socket before the loop's other work gets its turn.
_BATCH = 256
# Messages read but not yet handled; beyond it they stay in ZMQ's queue, whose own limit stops the sender.
_READ_AHEAD = 2048
# Long enough for the last results to leave at close, short enough for a stop within seconds.
_LINGER_MS = 500
# Aborts on their way to one stage; what does not fit is lost, and the work goes on to its end in vain.
_QUEUED_ABORTS = 100_000
# Aborts repeated to a stage that subscribes late, e.g. after a restart.
_REMEMBERED_ABORTS = 4096

_T = TypeVar("_T")


class ControlPlaneClosed(RuntimeError):
    """Raised by a pending or later ``recv`` once the control plane is closed."""


def encode_message(message: Message) -> bytes:
    """Raises TypeError or ValueError, naming the path, where the message holds what cannot be encoded."""
    return codec.pack(message.to_dict())


def decode_message(frame: bytes, *, trusted: bool = False) -> Message:
    """The message in ``frame``; ``trusted`` where it comes from a process of this host and user.

    Raises ValueError where it is not a message of a known type.
    """
    return parse_message(codec.unpack(frame, trusted=trusted))


def _decoder(endpoint: str) -> Callable[[bytes], Message]:
    return partial(decode_message, trusted=not endpoint.startswith("tcp://"))


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.linger = _LINGER_MS
    # A stage that is being restarted comes back on the same endpoint: look for it often.
    socket.reconnect_ivl = 20
    socket.reconnect_ivl_max = 500
    return socket


def _fd(socket: zmq.Socket[bytes]) -> int:
    """The descriptor that becomes readable when the socket's state may have changed."""
    return int(socket.getsockopt(zmq.FD))


class _Reader(Generic[_T]):
    """Reads one socket through the event loop, in batches.

    Messages go to the handler of ``deliver_to`` as they come, or wait for ``recv``, of which one may be
    pending at a time.
    """

    def __init__(self, socket: zmq.Socket[bytes], decode: Callable[[bytes], _T]) -> None:
        self._socket = socket
        self._decode = decode
        self._messages: deque[_T] = deque()
        self._handler: Callable[[_T], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._fd = _fd(socket)
        self._loop.add_reader(self._fd, self._fill)
        # The descriptor signals edges: what arrived before it was watched must be asked for.
        self._fill()

    async def recv(self) -> _T:
        while not self._messages:
            if self._socket.closed:
                raise ControlPlaneClosed("the control plane is closed")
            if self._paused:
                self.resume()
                continue
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._messages.popleft()

    def deliver_to(self, handler: Callable[[_T], bool]) -> None:
        """Hands over each message at once. ``handler`` returns False to get no more until ``resume``."""
        self._handler = handler
        while self._messages and not self._paused:
            self._paused = not handler(self._messages.popleft())

    def resume(self) -> None:
        self._paused = False
        self._fill()

    def _fill(self) -> None:
        """Takes what has arrived, a batch at most."""
        for _ in range(_BATCH):
            if self._socket.closed or self._paused:
                return
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decode(frame)
            except ValueError as exc:  # One malformed message does not stop a stage.
                logger.warning("Dropped a malformed message of %d bytes: %s", len(frame), exc)
                continue
            if self._handler is not None:
                self._paused = not self._handler(message)
            else:
                self._messages.append(message)
                self._paused = len(self._messages) >= _READ_AHEAD
                self._wake()
        # No new edge comes for what is still queued in the socket.
        self._loop.call_soon(self._fill)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close()
        self._wake()


class _Sender:
    """A PUSH socket to one peer. Messages leave in the order of the calls to ``send``."""

    def __init__(self, endpoint: str) -> None:
        self._socket = _socket(zmq.PUSH)
        self._socket.connect(endpoint)
        self._full = asyncio.Lock()

    async def send(self, message: Message) -> None:
        """Waits only while the peer's queue is full."""
        frame = encode_message(message)
        if not self._full.locked():
            try:
                self._socket.send(frame, zmq.NOBLOCK)
                return
            except zmq.Again:
                pass
        async with self._full:
            while True:
                try:
                    self._socket.send(frame, zmq.NOBLOCK)
                    return
                except zmq.Again:
                    await self._writable()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()

        def check() -> None:
            if not ready.done() and (self._socket.closed or self._socket.poll(0, zmq.POLLOUT)):
                ready.set_result(None)

        fd = _fd(self._socket)
        loop.add_reader(fd, check)
        try:
            check()
            await ready
        finally:
            loop.remove_reader(fd)
        if self._socket.closed:
            raise ControlPlaneClosed("the control plane is closed")

    def close(self) -> None:
        self._socket.close()


class StageControlPlane:
    """A stage's sockets: work in, work on to other stages, results to the coordinator, aborts in.

    Args:
        name: The stage's name, for messages about it.
        recv_endpoint: Where this stage receives work; it binds it.
        coordinator_endpoint: Where the coordinator receives results.
        abort_endpoint: Where the coordinator publishes aborts.
    """

    def __init__(self, name: str, recv_endpoint: str, coordinator_endpoint: str, abort_endpoint: str) -> None:
        self.name = name
        self.recv_endpoint = recv_endpoint
        self.coordinator_endpoint = coordinator_endpoint
        self.abort_endpoint = abort_endpoint
        self._work: _Reader[Message] | None = None
        self._aborts: _Reader[Message] | None = None
        self._senders: dict[str, _Sender] = {}

    async def start(self) -> None:
        """Binds and connects. Raises zmq.ZMQError where an endpoint cannot be used."""
        if self._work is not None:
            return
        pull = _socket(zmq.PULL)
        pull.bind(self.recv_endpoint)
        self._work = _Reader(pull, _decoder(self.recv_endpoint))
        sub = _socket(zmq.SUB)
        sub.subscribe(b"")
        sub.connect(self.abort_endpoint)
        self._aborts = _Reader(sub, _decoder(self.abort_endpoint))
        self._senders[self.coordinator_endpoint] = _Sender(self.coordinator_endpoint)

    async def recv(self) -> Message:
        """The next message for this stage. Raises ControlPlaneClosed after ``close``."""
        return await self._started(self._work).recv()

    def deliver_to(self, handler: Callable[[Message], bool]) -> None:
        """Hands every message for this stage to ``handler``, in the loop, in place of ``recv``.

        ``handler`` must not raise. It returns False to get no more until ``resume``.
        """
        self._started(self._work).deliver_to(handler)

    def resume(self) -> None:
        """Goes on delivering after the handler of ``deliver_to`` returned False."""
        self._started(self._work).resume()

    async def recv_abort(self) -> AbortMessage:
        """The next abort. Raises ControlPlaneClosed after ``close``."""
        while True:
            message = await self._started(self._aborts).recv()
            if isinstance(message, AbortMessage):
                return message
            logger.warning("Stage %s: dropped a %s message among aborts", self.name, message.type)

    async def send_to_stage(self, target: str, endpoint: str, message: Message) -> None:
        sender = self._senders.get(endpoint)
        if sender is None:
            self._started(self._work)
            sender = self._senders[endpoint] = _Sender(endpoint)
        await sender.send(message)

    async def send_complete(self, message: CompleteMessage) -> None:
        await self._to_coordinator().send(message)

    async def send_stream(self, message: StreamMessage) -> None:
        await self._to_coordinator().send(message)

    async def send_progress(self, message: ProgressMessage) -> None:
        await self._to_coordinator().send(message)

    def close(self) -> None:
        for reader in (self._work, self._aborts):
            if reader is not None:
                reader.close()
        for sender in self._senders.values():
            sender.close()

    def _to_coordinator(self) -> _Sender:
        return self._started(self._senders.get(self.coordinator_endpoint))

    def _started(self, part: _T | None) -> _T:
        if part is None:
            raise RuntimeError(f"the control plane of stage {self.name!r} is not started")
        return part


class CoordinatorControlPlane:
    """The coordinator's sockets: results in, work to stages, aborts to every stage.

    Args:
        completion_endpoint: Where stages send results, stream chunks and progress; bound here.
        abort_endpoint: Where aborts are published; bound here.
    """

    def __init__(self, completion_endpoint: str, abort_endpoint: str) -> None:
        self.completion_endpoint = completion_endpoint
        self.abort_endpoint = abort_endpoint
        self._results: _Reader[Message] | None = None
        self._publisher: zmq.Socket[bytes] | None = None
        self._publisher_fd = -1
        self._recent_aborts: deque[bytes] = deque(maxlen=_REMEMBERED_ABORTS)
        self._senders: dict[str, _Sender] = {}

    async def start(self) -> None:
        """Binds. Raises zmq.ZMQError where an endpoint cannot be used."""
        if self._results is not None:
            return
        pull = _socket(zmq.PULL)
        pull.bind(self.completion_endpoint)
        self._results = _Reader(pull, _decoder(self.completion_endpoint))
        # XPUB is PUB that also reports subscriptions, all of them in verbose mode.
        self._publisher = _socket(zmq.XPUB)
        self._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._publisher.setsockopt(zmq.SNDHWM, _QUEUED_ABORTS)
        self._publisher.bind(self.abort_endpoint)
        self._publisher_fd = _fd(self._publisher)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._publisher_fd, self._greet_subscribers)

    async def recv(self) -> Message:
        """The next message of a stage. Raises ControlPlaneClosed after ``close``."""
        if self._results is None:
            raise RuntimeError("the coordinator's control plane is not started")
        return await self._results.recv()

    def deliver_to(self, handler: Callable[[Message], bool]) -> None:
        """As ``StageControlPlane.deliver_to``."""
        if self._results is None:
            raise RuntimeError("the coordinator's control plane is not started")
        self._results.deliver_to(handler)

    async def send_to_stage(self, target: str, endpoint: str, message: Message) -> None:
        sender = self._senders.get(endpoint)
        if sender is None:
            sender = self._senders[endpoint] = _Sender(endpoint)
        await sender.send(message)

    async def send_shutdown(self, target: str, endpoint: str) -> None:
        await self.send_to_stage(target, endpoint, ShutdownMessage())

    def broadcast_abort(self, message: AbortMessage) -> None:
        """Tells every stage, and repeats it to those that connect later; never blocks."""
        if self._publisher is None or self._publisher.closed:
            return
        frame = encode_message(message)
        self._recent_aborts.append(frame)
        self._publisher.send(frame, zmq.NOBLOCK)
        self._greet_subscribers()

    def _greet_subscribers(self) -> None:
        if self._publisher is None or self._publisher.closed:
            return
        newcomers = False
        while True:
            try:
                newcomers |= self._publisher.recv(zmq.NOBLOCK).startswith(b"\x01")
            except zmq.Again:
                break
        if newcomers:
            # Published before their subscription arrived, these never reached them. Aborts are idempotent.
            for frame in self._recent_aborts:
                self._publisher.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        if self._results is not None:
            self._results.close()
        if self._publisher is not None and not self._publisher.closed:
            self._loop.remove_reader(self._publisher_fd)
            self._publisher.close()
        for sender in self._senders.values():
            sender.close()
