"""The control plane: PUSH/PULL sockets for work and results, PUB/SUB for aborts.

The scheme of an endpoint decides its kind of socket: ``ipc://`` ones are driven by the event loop itself
(``ipc/``), ``tcp://`` ones outlive a broken connection (``tcp/``), others are libzmq's. A process that other
hosts reach binds both an ``ipc://`` and a ``tcp://`` endpoint.
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
from sglang_omni.pipeline.transport.ipc.address import SCHEME as IPC
from sglang_omni.pipeline.transport.ipc.publishing import IpcPublisher, IpcSubscriber
from sglang_omni.pipeline.transport.ipc.sockets import IpcPullSocket, IpcPushSocket
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.limits import READ_AHEAD
from sglang_omni.pipeline.transport.publisher import Publisher
from sglang_omni.pipeline.transport.tcp.pull import TcpPullSocket
from sglang_omni.pipeline.transport.tcp.push import OnLost, TcpPushSocket
from sglang_omni.pipeline.transport.tcp.sockets import SCHEME as TCP
from sglang_omni.pipeline.transport.tcp.sockets import connect_tcp
from sglang_omni.pipeline.transport.zmq_socket import ZmqReceiver, ZmqSender, zmq_socket
from sglang_omni.proto import (
    AbortMessage,
    DataReadyBatchMessage,
    DataReadyMessage,
    Message,
    codec,
    parse_message,
)
from sglang_omni.proto.messages import build_checks

__all__ = [
    "ControlPlaneClosed",
    "CoordinatorControlPlane",
    "StageControlPlane",
    "decode_message",
    "encode_message",
]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Called with a stage's name, a message to it that may not have arrived, and why. Must not raise.
Lost = Callable[[str, Message, str], None]


def encode_message(message: Message) -> bytes:
    """Raises TypeError or ValueError, naming the path, if the message holds what cannot be encoded."""
    return codec.pack(message.to_dict())


def decode_message(frame: bytes, *, trusted: bool = False) -> Message:
    """The message in ``frame``.

    Args:
        frame: What ``encode_message`` returned.
        trusted: True if it comes from a process of this host and user, and so may name any class.

    Raises:
        ValueError: It is not a message of a known type.
    """
    return parse_message(codec.unpack(frame, trusted=trusted))


class MessageReader:
    """Decodes what its sockets receive, and does not trust what ``tcp://`` ones do.

    Messages go to the handler of ``deliver_to`` as they come, or wait for ``recv``, of which one may be
    pending at a time. If the handler returns False, or ``READ_AHEAD`` messages wait, all sockets pause.

    Args:
        endpoints: Where it receives.
        open_socket: Opens the socket of an endpoint, which delivers to the function it is given.
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
        """Where its sockets are bound or connected, each with its port."""
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
        """Hands over each message as it comes; ``handler`` returns False to get no more until ``resume``."""
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
        # In turns: the first socket may use up all the room there is.
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
        except ValueError as exc:  # A malformed message must not stop a stage.
            logger.warning("Dropped a malformed message of %d bytes: %s", len(frame), exc)
            return True
        if not trusted and isinstance(message, DataReadyMessage | DataReadyBatchMessage):
            message.trusted = False
        if self._handler is not None:
            goes_on = self._handler(message)
        else:
            self._messages.append(message)
            self._wake()
            goes_on = len(self._messages) < READ_AHEAD
        if not goes_on:
            self._pause()
        return goes_on

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _bind(keys: RunKeys | None, endpoint: str, deliver: Deliver) -> Receiver:
    """A socket that receives at ``endpoint``. Raises ValueError, OSError or zmq.ZMQError if it cannot."""
    if endpoint.startswith(IPC):
        return IpcPullSocket(endpoint, deliver)
    if endpoint.startswith(TCP):
        return TcpPullSocket(endpoint, keys, deliver)
    socket = zmq_socket(zmq.PULL)
    socket.bind(endpoint)
    return ZmqReceiver(socket, deliver)


def _connect(keys: RunKeys | None, endpoint: str, on_lost: OnLost | None = None) -> Sender:
    """A socket that sends to ``endpoint``, whether its peer is there yet or not."""
    if endpoint.startswith(IPC):
        return IpcPushSocket(endpoint)
    return TcpPushSocket(endpoint, keys, on_lost) if endpoint.startswith(TCP) else ZmqSender(endpoint)


def _publish(keys: RunKeys | None, endpoint: str) -> Publisher | IpcPublisher:
    """What publishes aborts at ``endpoint``. Raises ValueError, OSError or zmq.ZMQError if it cannot."""
    return IpcPublisher(endpoint) if endpoint.startswith(IPC) else Publisher(endpoint, keys)


def _subscribe(keys: RunKeys | None, endpoint: str, deliver: Deliver) -> Receiver:
    if endpoint.startswith(IPC):
        return IpcSubscriber(endpoint, deliver)
    socket = zmq_socket(zmq.SUB)
    socket.subscribe(b"")
    if endpoint.startswith(TCP):
        connect_tcp(socket, endpoint, keys)
    else:
        socket.connect(endpoint)
    return ZmqReceiver(socket, deliver)


class _PeerSenders:
    """The sockets to the stages, each opened when something is first sent to its stage."""

    def __init__(self, keys: RunKeys | None) -> None:
        self._keys = keys
        self._senders: dict[str, Sender] = {}
        self.on_lost: Lost | None = None

    async def send(self, target: str, endpoint: str, message: Message) -> None:
        sender = self._senders.get(target)
        if sender is None:
            sender = _connect(self._keys, endpoint, partial(self._lose, target))
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


class _ControlPlane:
    """The part that both control planes share: messages in from any peer, messages out to stages."""

    def __init__(self, owner: str, endpoint: str, host_address: str | None, keys: RunKeys | None) -> None:
        self.host_address = host_address
        self._owner = owner
        self._endpoint = endpoint
        self._keys = keys
        self._reader: MessageReader | None = None
        self._stages = _PeerSenders(keys)

    async def recv(self) -> Message:
        """The next message. Raises ControlPlaneClosed after ``close``."""
        return await self._started(self._reader).recv()

    def deliver_to(self, handler: Callable[[Message], bool]) -> None:
        """Hands every message to ``handler``, in the event loop, in place of ``recv``.

        ``handler`` must not raise. It returns False to get no more until ``resume``.
        """
        self._started(self._reader).deliver_to(handler)

    def resume(self) -> None:
        """Goes on delivering after the handler of ``deliver_to`` returned False."""
        self._started(self._reader).resume()

    async def send_to_stage(self, target: str, endpoint: str, message: Message) -> None:
        """Sends to a stage.

        Args:
            target: The stage's instance.
            endpoint: Where it receives; used for the first message, and by ``move`` changed later.
            message: For it.
        """
        await self._stages.send(target, endpoint, message)

    def move(self, target: str, endpoint: str) -> None:
        """Sends to this stage at another ``tcp://`` endpoint from now on; an ``ipc://`` one stays."""
        self._stages.move(target, endpoint)

    def on_lost(self, lost: Lost) -> None:
        """Reports messages to stages that may not have arrived; ``tcp/link.py`` says which those are."""
        self._stages.on_lost = lost

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._stages.close()

    def _host_endpoints(self) -> list[str]:
        """Where to bind for peers on other hosts; the system picks the port."""
        host = self.host_address
        if not host:
            return []
        return [f"{TCP}[{host}]:*" if ":" in host else f"{TCP}{host}:*"]

    def _start_reader(self) -> None:
        build_checks()
        endpoints = [self._endpoint, *self._host_endpoints()]
        self._reader = MessageReader(endpoints, partial(_bind, self._keys))

    def _started(self, part: _T | None) -> _T:
        if part is None:
            raise RuntimeError(f"the control plane of {self._owner} is not started")
        return part


class StageControlPlane(_ControlPlane):
    """A stage's sockets: work in, work on to other stages, results to the coordinator, aborts in.

    Args:
        name: The stage's name, for error messages.
        recv_endpoint: Where this stage receives work; bound by ``start``.
        coordinator_endpoint: Where the coordinator receives results.
        abort_endpoint: Where the coordinator publishes aborts.
        host_address: The address of this host at which other hosts reach the stage, if they do.
        keys: The run's keys; needed for ``tcp://`` sockets.
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
        super().__init__(f"stage {name!r}", recv_endpoint, host_address, keys)
        self.name = name
        self.recv_endpoint = recv_endpoint
        self.coordinator_endpoint = coordinator_endpoint
        self.abort_endpoint = abort_endpoint
        self._aborts: MessageReader | None = None
        self._coordinator: Sender | None = None

    @property
    def tcp_endpoint(self) -> str | None:
        """Where other hosts reach the stage; None before ``start``, or if they cannot."""
        bound = self._reader.endpoints if self._reader is not None else []
        return next((endpoint for endpoint in reversed(bound) if endpoint.startswith(TCP)), None)

    async def start(self) -> None:
        """Binds and connects. Raises ValueError, OSError or zmq.ZMQError if an endpoint cannot be used."""
        if self._reader is not None:
            return
        self._start_reader()
        self._aborts = MessageReader([self.abort_endpoint], partial(_subscribe, self._keys))
        self._coordinator = _connect(self._keys, self.coordinator_endpoint)

    async def recv_abort(self) -> AbortMessage:
        """The next abort. Raises ControlPlaneClosed after ``close``."""
        while True:
            message = await self._started(self._aborts).recv()
            if isinstance(message, AbortMessage):
                return message
            logger.warning("Stage %s: dropped a %s message among aborts", self.name, message.type)

    async def send_complete(self, message: Message) -> None:
        """Sends a message to the coordinator, of whatever type; waits while it is far behind."""
        await self._started(self._coordinator).send(encode_message(message))

    # One method under the names that existing code uses, by what the message is.
    send_stream = send_stream_batch = send_progress = send_stats = send_complete

    def close(self) -> None:
        """Closes all sockets; what was sent may still leave within ``LINGER_S``."""
        if self._aborts is not None:
            self._aborts.close()
        if self._coordinator is not None:
            self._coordinator.close()
        super().close()


class CoordinatorControlPlane(_ControlPlane):
    """The coordinator's sockets: results in, work to stages, aborts to every stage.

    Args:
        completion_endpoint: Where stages send results, stream chunks and progress; bound by ``start``.
        abort_endpoint: Where aborts are published; bound by ``start``.
        host_address: The address of this host at which other hosts reach both, if they do.
        keys: The run's keys; needed for ``tcp://`` sockets.
    """

    def __init__(
        self,
        completion_endpoint: str,
        abort_endpoint: str,
        *,
        host_address: str | None = None,
        keys: RunKeys | None = None,
    ) -> None:
        super().__init__("the coordinator", completion_endpoint, host_address, keys)
        self.completion_endpoint = completion_endpoint
        self.abort_endpoint = abort_endpoint
        self._publishers: list[Publisher | IpcPublisher] = []

    @property
    def tcp_endpoints(self) -> dict[str, str]:
        """``"completion"`` and ``"abort"`` -> where other hosts reach it; empty if they cannot."""
        if self._reader is None:
            return {}
        bound = {
            "completion": self._reader.endpoints,
            "abort": [publisher.endpoint for publisher in self._publishers],
        }
        return {key: it for key, endpoints in bound.items() for it in endpoints if it.startswith(TCP)}

    async def start(self) -> None:
        """Binds. Raises ValueError, OSError or zmq.ZMQError if an endpoint cannot be used."""
        if self._reader is not None:
            return
        self._start_reader()
        for endpoint in (self.abort_endpoint, *self._host_endpoints()):
            self._publishers.append(_publish(self._keys, endpoint))

    def broadcast_abort(self, message: AbortMessage) -> None:
        """Sends to every stage, and again to those that connect later; never blocks."""
        frame = encode_message(message)
        for publisher in self._publishers:
            publisher.send(frame)

    def close(self) -> None:
        """Closes all sockets; what was sent may still leave within ``LINGER_S``."""
        super().close()
        for publisher in self._publishers:
            publisher.close()
