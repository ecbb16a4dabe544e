"""The control plane: PUSH/PULL sockets for work and results, PUB/SUB for aborts.

The sockets are those of ``transport``: on ``ipc://`` endpoints work and results go through ones that the
event loop drives itself (``local_push``, ``local_pull``); ``tcp://`` endpoints, and the aborts, are libzmq's.
Who is to be reached from other hosts binds both kinds. All of it belongs to the thread of the running loop.
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
from sglang_omni.pipeline.transport.ipc.address import SCHEME as LOCAL
from sglang_omni.pipeline.transport.ipc.pull import PullSocket
from sglang_omni.pipeline.transport.ipc.push import PushSocket
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.publisher import Publisher
from sglang_omni.pipeline.transport.tcp.pull import TcpPullSocket
from sglang_omni.pipeline.transport.tcp.push import OnLost, TcpPushSocket
from sglang_omni.pipeline.transport.tcp.sockets import SCHEME as TCP
from sglang_omni.pipeline.transport.tcp.sockets import connect_tcp
from sglang_omni.pipeline.transport.zmq_socket import ZmqReceiver, ZmqSender, zmq_socket
from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    Message,
    ProgressMessage,
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

_T = TypeVar("_T")

# Called with the stage a message was for, the message, which may not have arrived there, and why. Must not
# raise.
Lost = Callable[[str, Message, str], None]


def encode_message(message: Message) -> bytes:
    """Raises TypeError or ValueError, naming the path, where the message holds what cannot be encoded."""
    return codec.pack(message.to_dict())


def decode_message(frame: bytes, *, trusted: bool = False) -> Message:
    """The message in ``frame``; ``trusted`` where it comes from a process of this host and user.

    Raises ValueError where it is not a message of a known type.
    """
    return parse_message(codec.unpack(frame, trusted=trusted))


def _bind(endpoint: str, keys: RunKeys | None, deliver: Deliver) -> Receiver:
    """A socket that receives at ``endpoint``. Raises ValueError, OSError or zmq.ZMQError where none can."""
    if endpoint.startswith(LOCAL):
        return PullSocket(endpoint, deliver)
    if endpoint.startswith(TCP):
        return TcpPullSocket(endpoint, keys, deliver)
    socket = zmq_socket(zmq.PULL)
    socket.bind(endpoint)
    return ZmqReceiver(socket, deliver)


def _connect(endpoint: str, keys: RunKeys | None, on_lost: OnLost | None) -> Sender:
    """A socket that sends to ``endpoint``, whether anybody is there yet or not."""
    if endpoint.startswith(LOCAL):
        return PushSocket(endpoint)
    return TcpPushSocket(endpoint, keys, on_lost) if endpoint.startswith(TCP) else ZmqSender(endpoint)


def _subscribe(endpoint: str, keys: RunKeys | None, deliver: Deliver) -> Receiver:
    socket = zmq_socket(zmq.SUB)
    socket.subscribe(b"")
    if endpoint.startswith(TCP):
        connect_tcp(socket, endpoint, keys)
    else:
        socket.connect(endpoint)
    return ZmqReceiver(socket, deliver)


def _tcp_wildcard(host: str) -> str:
    return f"{TCP}[{host}]:*" if ":" in host else f"{TCP}{host}:*"


class _Inbox:
    """Decodes what its sockets receive: those of ``tcp://`` endpoints are not trusted.

    Messages go to the handler of ``deliver_to`` as they come, or wait for ``recv``, of which one may be
    pending at a time. All sockets are paused while either has taken enough.

    Args:
        endpoints: Where it receives.
        open_socket: Makes the socket of an endpoint, which is to call the function it is given with each
            message.
    """

    def __init__(self, endpoints: list[str], open_socket: Callable[[str, Deliver], Receiver]) -> None:
        self._messages: deque[Message] = deque()
        self._handler: Callable[[Message], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._closed = False
        self._sockets: deque[Receiver] = deque()
        try:
            for endpoint in endpoints:
                trusted = not endpoint.startswith(TCP)
                self._sockets.append(open_socket(endpoint, partial(self._take, trusted)))
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> list[str]:
        """Where its sockets are, each with its port."""
        return [socket.endpoint for socket in self._sockets]

    async def recv(self) -> Message:
        while not self._messages:
            if self._closed:
                raise ControlPlaneClosed
            if self._paused:
                self._go_on()
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
                    self._pause()
                    return
        self._go_on()

    def close(self) -> None:
        self._closed = True
        for socket in self._sockets:
            socket.close()
        self._wake()

    def _go_on(self) -> None:
        self._paused = False
        # Whoever goes first may take all the room there is.
        self._sockets.rotate()
        for socket in tuple(self._sockets):
            if not self._paused:
                socket.resume()

    def _pause(self) -> None:
        self._paused = True
        for socket in self._sockets:
            socket.pause()

    def _take(self, trusted: bool, frame: bytes) -> bool:
        try:
            message = decode_message(frame, trusted=trusted)
        except ValueError as exc:  # One malformed message does not stop a stage.
            logger.warning("Dropped a malformed message of %d bytes: %s", len(frame), exc)
            return True
        if not trusted and isinstance(message, DataReadyMessage):
            message.trusted = False
        if self._handler is not None:
            goes_on = self._handler(message)
        else:
            self._messages.append(message)
            self._wake()
            goes_on = len(self._messages) < _READ_AHEAD
        if not goes_on:
            self._pause()
        return goes_on

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Outbox:
    """A sender for each stage that is sent to."""

    def __init__(self, keys: RunKeys | None) -> None:
        self._keys = keys
        self._senders: dict[str, Sender] = {}
        self.on_lost: Lost | None = None

    async def send(self, target: str, endpoint: str, message: Message) -> None:
        sender = self._senders.get(target)
        if sender is None:
            sender = _connect(endpoint, self._keys, partial(self._lose, target))
            self._senders[target] = sender
        await sender.send(encode_message(message))

    def move(self, target: str, endpoint: str) -> None:
        sender = self._senders.get(target)
        if isinstance(sender, TcpPushSocket) and endpoint != sender.endpoint:
            sender.redirect(endpoint)

    def _lose(self, target: str, frames: list[bytes], reason: str) -> None:
        if self.on_lost is not None:
            for frame in frames:
                self.on_lost(target, decode_message(frame, trusted=True), reason)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()


class StageControlPlane:
    """A stage's sockets: work in, work on to other stages, results to the coordinator, aborts in.

    Args:
        name: The stage's name, for messages about it.
        recv_endpoint: Where this stage receives work; it binds it.
        coordinator_endpoint: Where the coordinator receives results.
        abort_endpoint: Where the coordinator publishes aborts.
        host_address: The address of this host at which it is to be reached from others too.
        keys: What ``tcp://`` sockets talk with; needed where there are any.
    """

    def __init__(
        self,
        name: str,
        recv_endpoint: str,
        coordinator_endpoint: str,
        abort_endpoint: str,
        *,
        host_address: str | None = None,
        keys: RunKeys | None = None,
    ) -> None:
        self.name = name
        self.recv_endpoint = recv_endpoint
        self.coordinator_endpoint = coordinator_endpoint
        self.abort_endpoint = abort_endpoint
        self.host_address = host_address
        self._keys = keys
        self._work: _Inbox | None = None
        self._aborts: _Inbox | None = None
        self._coordinator: Sender | None = None
        self._others = _Outbox(keys)

    @property
    def tcp_endpoint(self) -> str | None:
        """Where other hosts reach it; None before ``start``, and where they cannot."""
        bound = self._work.endpoints if self._work is not None else []
        return next((endpoint for endpoint in reversed(bound) if endpoint.startswith(TCP)), None)

    async def start(self) -> None:
        """Binds and connects. Raises ValueError, OSError or zmq.ZMQError where an endpoint cannot be used."""
        if self._work is not None:
            return
        endpoints = [self.recv_endpoint, *([_tcp_wildcard(self.host_address)] if self.host_address else [])]
        self._work = _Inbox(endpoints, lambda endpoint, deliver: _bind(endpoint, self._keys, deliver))
        self._aborts = _Inbox(
            [self.abort_endpoint], lambda endpoint, deliver: _subscribe(endpoint, self._keys, deliver)
        )
        self._coordinator = _connect(self.coordinator_endpoint, self._keys, None)

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

    def on_lost(self, lost: Lost) -> None:
        """Has messages to other stages that may not have arrived reported; see ``transport.tcp_link``."""
        self._others.on_lost = lost

    async def recv_abort(self) -> AbortMessage:
        """The next abort. Raises ControlPlaneClosed after ``close``."""
        while True:
            message = await self._started(self._aborts).recv()
            if isinstance(message, AbortMessage):
                return message
            logger.warning("Stage %s: dropped a %s message among aborts", self.name, message.type)

    async def send_to_stage(self, target: str, endpoint: str, message: Message) -> None:
        """Sends to a stage; ``endpoint`` says where it is until ``move`` says otherwise."""
        self._started(self._work)
        await self._others.send(target, endpoint, message)

    def move(self, target: str, endpoint: str) -> None:
        """What is sent to this stage over ``tcp://`` goes to another endpoint from now on."""
        self._others.move(target, endpoint)

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
        if self._coordinator is not None:
            self._coordinator.close()
        self._others.close()

    def _to_coordinator(self) -> Sender:
        return self._started(self._coordinator)

    def _started(self, part: _T | None) -> _T:
        if part is None:
            raise RuntimeError(f"the control plane of stage {self.name!r} is not started")
        return part


class CoordinatorControlPlane:
    """The coordinator's sockets: results in, work to stages, aborts to every stage.

    Args:
        completion_endpoint: Where stages send results, stream chunks and progress; bound here.
        abort_endpoint: Where aborts are published; bound here.
        host_address: The address of this host at which both are to be reached from others too.
        keys: What ``tcp://`` sockets talk with; needed where there are any.
    """

    def __init__(
        self,
        completion_endpoint: str,
        abort_endpoint: str,
        *,
        host_address: str | None = None,
        keys: RunKeys | None = None,
    ) -> None:
        self.completion_endpoint = completion_endpoint
        self.abort_endpoint = abort_endpoint
        self.host_address = host_address
        self._keys = keys
        self._results: _Inbox | None = None
        self._publishers: list[Publisher] = []
        self._stages = _Outbox(keys)

    @property
    def tcp_endpoints(self) -> dict[str, str]:
        """``"completion"`` and ``"abort"`` -> where other hosts reach it; empty where they cannot."""
        if self._results is None:
            return {}
        bound = {
            "completion": self._results.endpoints,
            "abort": [publisher.endpoint for publisher in self._publishers],
        }
        return {key: it for key, endpoints in bound.items() for it in endpoints if it.startswith(TCP)}

    async def start(self) -> None:
        """Binds. Raises ValueError, OSError or zmq.ZMQError where an endpoint cannot be used."""
        if self._results is not None:
            return
        also = [_tcp_wildcard(self.host_address)] if self.host_address else []
        self._results = _Inbox(
            [self.completion_endpoint, *also],
            lambda endpoint, deliver: _bind(endpoint, self._keys, deliver),
        )
        for endpoint in (self.abort_endpoint, *also):
            self._publishers.append(Publisher(endpoint, self._keys))

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

    def on_lost(self, lost: Lost) -> None:
        """As ``StageControlPlane.on_lost``."""
        self._stages.on_lost = lost

    async def send_to_stage(self, target: str, endpoint: str, message: Message) -> None:
        """As ``StageControlPlane.send_to_stage``."""
        await self._stages.send(target, endpoint, message)

    def move(self, target: str, endpoint: str) -> None:
        """As ``StageControlPlane.move``."""
        self._stages.move(target, endpoint)

    def broadcast_abort(self, message: AbortMessage) -> None:
        """Tells every stage, and repeats it to those that connect later; never blocks."""
        frame = encode_message(message)
        for publisher in self._publishers:
            publisher.send(frame)

    def close(self) -> None:
        if self._results is not None:
            self._results.close()
        for publisher in self._publishers:
            publisher.close()
        self._stages.close()
