"""The control plane: PUSH/PULL sockets for work and results, PUB/SUB for aborts.

The sockets are those of ``transport``: on ``ipc://`` endpoints work and results go through ones that the
event loop drives itself (``local_push``, ``local_pull``); other endpoints, and the aborts, are libzmq's
(``zmq_socket``). All of it belongs to the thread of the running loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import zmq

from sglang_omni.pipeline.transport.base import ControlPlaneClosed, Deliver, Receiver, Sender
from sglang_omni.pipeline.transport.local_pull import PullSocket
from sglang_omni.pipeline.transport.local_push import PushSocket
from sglang_omni.pipeline.transport.local_socket import SCHEME as LOCAL
from sglang_omni.pipeline.transport.zmq_socket import ZmqReceiver, ZmqSender, state_fd, zmq_socket
from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    Message,
    ProgressMessage,
    ShutdownMessage,
    StatsMessage,
    StreamMessage,
    codec,
    parse_message,
)

__all__ = [
    "ControlPlaneClosed",
    "CoordinatorControlPlane",
    "StageControlPlane",
    "decode_message",
    "encode_message",
]

logger = logging.getLogger(__name__)

# Messages read but not yet asked for; beyond it they stay in the sockets' queues, which stops the senders.
_READ_AHEAD = 2048
# Aborts on their way to one stage; what does not fit is lost, and the work goes on to its end in vain.
_QUEUED_ABORTS = 100_000
# Aborts repeated to a stage that subscribes late, e.g. after a restart.
_REMEMBERED_ABORTS = 4096

_T = TypeVar("_T")


def encode_message(message: Message) -> bytes:
    """Raises TypeError or ValueError, naming the path, where the message holds what cannot be encoded."""
    return codec.pack(message.to_dict())


def decode_message(frame: bytes, *, trusted: bool = False) -> Message:
    """The message in ``frame``; ``trusted`` where it comes from a process of this host and user.

    Raises ValueError where it is not a message of a known type.
    """
    return parse_message(codec.unpack(frame, trusted=trusted))


def _bind(endpoint: str, deliver: Deliver) -> Receiver:
    """A PULL socket at ``endpoint``. Raises ValueError, OSError or zmq.ZMQError where that cannot be."""
    if endpoint.startswith(LOCAL):
        return PullSocket(endpoint, deliver)
    pull = zmq_socket(zmq.PULL)
    pull.bind(endpoint)
    return ZmqReceiver(pull, deliver)


def _connect(endpoint: str) -> Sender:
    """A PUSH socket to ``endpoint``, whether anybody is there yet or not."""
    return PushSocket(endpoint) if endpoint.startswith(LOCAL) else ZmqSender(endpoint)


class _Inbox:
    """Decodes what a socket receives.

    Messages go to the handler of ``deliver_to`` as they come, or wait for ``recv``, of which one may be
    pending at a time.

    Args:
        endpoint: Whose peers are trusted, unless they may be on other hosts.
        open_socket: Makes the socket, which is to call the function it is given with each message.
    """

    def __init__(self, endpoint: str, open_socket: Callable[[Deliver], Receiver]) -> None:
        self._trusted = not endpoint.startswith("tcp://")
        self._messages: deque[Message] = deque()
        self._handler: Callable[[Message], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._socket = open_socket(self._take)

    async def recv(self) -> Message:
        while not self._messages:
            if self._socket.closed:
                raise ControlPlaneClosed
            if self._socket.paused:
                self._socket.resume()
                continue
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._messages.popleft()

    def deliver_to(self, handler: Callable[[Message], bool]) -> None:
        """Hands over each message at once. ``handler`` returns False to get no more until ``resume``."""
        self._handler = handler
        self.resume()

    def resume(self) -> None:
        if self._handler is not None:
            while self._messages:
                if not self._handler(self._messages.popleft()):
                    self._socket.pause()
                    return
        self._socket.resume()

    def close(self) -> None:
        self._socket.close()
        self._wake()

    def _take(self, frame: bytes) -> bool:
        try:
            message = decode_message(frame, trusted=self._trusted)
        except ValueError as exc:  # One malformed message does not stop a stage.
            logger.warning("Dropped a malformed message of %d bytes: %s", len(frame), exc)
            return True
        if self._handler is not None:
            return self._handler(message)
        self._messages.append(message)
        self._wake()
        return len(self._messages) < _READ_AHEAD

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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
        self._work: _Inbox | None = None
        self._aborts: _Inbox | None = None
        self._senders: dict[str, Sender] = {}

    async def start(self) -> None:
        """Binds and connects. Raises ValueError, OSError or zmq.ZMQError where an endpoint cannot be used."""
        if self._work is not None:
            return
        self._work = _Inbox(self.recv_endpoint, partial(_bind, self.recv_endpoint))
        sub = zmq_socket(zmq.SUB)
        sub.subscribe(b"")
        sub.connect(self.abort_endpoint)
        self._aborts = _Inbox(self.abort_endpoint, partial(ZmqReceiver, sub))
        self._senders[self.coordinator_endpoint] = _connect(self.coordinator_endpoint)

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
            sender = self._senders[endpoint] = _connect(endpoint)
        await sender.send(encode_message(message))

    async def send_complete(self, message: CompleteMessage) -> None:
        await self._to_coordinator().send(encode_message(message))

    async def send_stream(self, message: StreamMessage) -> None:
        await self._to_coordinator().send(encode_message(message))

    async def send_progress(self, message: ProgressMessage) -> None:
        await self._to_coordinator().send(encode_message(message))

    async def send_stats(self, message: StatsMessage) -> None:
        await self._to_coordinator().send(encode_message(message))

    def close(self) -> None:
        for reader in (self._work, self._aborts):
            if reader is not None:
                reader.close()
        for sender in self._senders.values():
            sender.close()

    def _to_coordinator(self) -> Sender:
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
        self._results: _Inbox | None = None
        self._publisher: zmq.Socket[bytes] | None = None
        self._publisher_fd = -1
        self._recent_aborts: deque[bytes] = deque(maxlen=_REMEMBERED_ABORTS)
        self._senders: dict[str, Sender] = {}

    async def start(self) -> None:
        """Binds. Raises ValueError, OSError or zmq.ZMQError where an endpoint cannot be used."""
        if self._results is not None:
            return
        self._results = _Inbox(self.completion_endpoint, partial(_bind, self.completion_endpoint))
        # XPUB is PUB that also reports subscriptions, all of them in verbose mode.
        self._publisher = zmq_socket(zmq.XPUB)
        self._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._publisher.setsockopt(zmq.SNDHWM, _QUEUED_ABORTS)
        self._publisher.bind(self.abort_endpoint)
        self._publisher_fd = state_fd(self._publisher)
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
            sender = self._senders[endpoint] = _connect(endpoint)
        await sender.send(encode_message(message))

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
