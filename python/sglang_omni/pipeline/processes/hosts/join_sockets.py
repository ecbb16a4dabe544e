"""The encrypted connections between a coordinator, which has a ROUTER, and hosts, with a DEALER each.

Both ends have the same CURVE key, the join key, and refuse a peer with another one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from sglang_omni.pipeline.processes.hosts import messages
from sglang_omni.pipeline.processes.hosts.messages import FromCoordinator, FromHost
from sglang_omni.pipeline.transport import open_files
from sglang_omni.pipeline.transport.keys import RunKeys, secure_client, secure_server

logger = logging.getLogger(__name__)

# A host that hears nothing for so long connects anew: TCP itself would notice long after the link is back. It
# tries often, to be back soon after the link, and before the next cut.
_PING_MS = 250
_SILENT_MS = 1000
_CONNECT_MS = 500
_RECONNECT_MS = 100
_LONGEST_RECONNECT_MS = 250
_LINGER_MS = 500
# Between two log lines on strangers at the port.
_COMPLAIN_EVERY_S = 10.0
# So many times in a row the other end must hang up on a key before the key counts as wrong.
_REFUSALS = 3
# A coordinator that is paused for a while does not answer a handshake.
_HANDSHAKE_MS = 10_000
# Connections that may wait to be accepted: hosts must fit in beside a burst of strangers.
_BACKLOG = 1024

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# libzmq's code for a message that could not be decrypted.
_CRYPTOGRAPHIC = 0x11000001


class JoinRefused(RuntimeError):
    """A host cannot join, and trying again would not help. The text says why."""


class RouterSocket:
    """The coordinator's end, which belongs to the running loop.

    Args:
        endpoint: Where to listen: ``tcp://10.0.0.1:7000``.
        key: The join key.
        on_disconnect: Called when the connection of some host has ended.

    Raises:
        zmq.ZMQError: It cannot listen there.
    """

    def __init__(self, endpoint: str, key: RunKeys, on_disconnect: Callable[[], None]) -> None:
        open_files.raise_limit()
        self._socket = _socket(zmq.ROUTER, endpoint)
        secure_server(self._socket, key)
        self._socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        # A host that connects anew keeps its session, and nothing is queued for one that is gone.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._monitor = _monitor(self._socket, _HANDSHAKE_FAILED | zmq.EVENT_DISCONNECTED)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._on_disconnect = on_disconnect
        self._watching = asyncio.create_task(self._watch(), name="join port")

    async def receive(self) -> tuple[bytes, FromHost]:
        """The next message, after the session of the host that sent it."""
        while True:
            frames = await self._socket.recv_multipart()
            try:
                session, frame = frames
                return session, messages.parse_from_host(frame)
            except ValueError as exc:
                logger.warning("Dropped a malformed message of a host: %s", exc)

    def send(self, session: bytes, message: FromCoordinator) -> bool:
        """Send without blocking. False if the host of this session is not connected."""
        return _sent(self._socket.send_multipart([session, messages.encode(message)], flags=zmq.NOBLOCK))

    def close(self) -> None:
        self._watching.cancel()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()

    async def _watch(self) -> None:
        quiet_until = 0.0
        loop = asyncio.get_running_loop()
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._on_disconnect()
            elif loop.time() >= quiet_until:
                quiet_until = loop.time() + _COMPLAIN_EVERY_S
                if event["value"] == _CRYPTOGRAPHIC:
                    logger.warning("A host tried to join %s with another key than this one's", self.endpoint)
                else:
                    logger.warning("A client that is no host connected to %s, and was cut off", self.endpoint)


class DealerSocket:
    """A host's end. It keeps its session when it connects anew, so that the coordinator knows it.

    Args:
        coordinator: Its endpoint: ``tcp://10.0.0.1:7000``.
        key: The join key.
    """

    def __init__(self, coordinator: str, key: RunKeys) -> None:
        self._coordinator = coordinator
        self._socket = _socket(zmq.DEALER, coordinator)
        secure_client(self._socket, key)
        self._socket.setsockopt(zmq.ROUTING_ID, uuid.uuid4().bytes)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MS)
        self._monitor = _monitor(self._socket, zmq.EVENT_ALL)
        self._socket.connect(coordinator)

    async def connected(self) -> None:
        """Return once the coordinator has accepted the key. Must be awaited once, before anything else.

        Raises:
            JoinRefused: The coordinator refuses the key, or something else listens there.
        """
        hung_up = 0
        complained = False
        while True:
            message = parse_monitor_message(await self._monitor.recv_multipart())
            match zmq.Event(message["event"]):
                case zmq.Event.HANDSHAKE_SUCCEEDED:
                    # libzmq blocks once unread monitor events fill its queue.
                    self._socket.disable_monitor()
                    return
                case zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH:
                    # After this libzmq does not connect again.
                    raise JoinRefused(f"what listens at {self._coordinator} is no coordinator")
                case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL if message["value"] != errno.EAGAIN:
                    hung_up += 1
                    if hung_up == _REFUSALS:
                        raise JoinRefused(
                            f"{self._coordinator} hangs up on this join key: copy the coordinator's key file "
                            "to this host, if that is its join port"
                        )
                    continue
                case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
                    why = f"{self._coordinator} takes connections, but does not answer as a coordinator does"
                case zmq.Event.CLOSED:
                    why = f"There is no answer at {self._coordinator} yet"
                case _:
                    continue
            hung_up = 0
            if not complained:
                complained = True
                logger.info("%s; trying on", why)

    async def receive(self) -> FromCoordinator:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                (frame,) = frames
                return messages.parse_from_coordinator(frame)
            except ValueError as exc:
                logger.warning("Dropped a malformed message of the coordinator: %s", exc)

    def send(self, message: FromHost) -> None:
        """Send without blocking; a message that the connection has no room for is lost."""
        _sent(self._socket.send(messages.encode(message), flags=zmq.NOBLOCK))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()


def _sent(sending: Any) -> bool:
    """True if a message was sent. With NOBLOCK, the future is done by now."""
    future: asyncio.Future[object] = sending
    return future.exception() is None


def _socket(kind: int, endpoint: str) -> zmq.asyncio.Socket:
    """A socket for this endpoint, of this process's context, for the running loop."""
    context = zmq.asyncio.Context.shadow(zmq.Context.instance().underlying)
    socket: zmq.asyncio.Socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, messages.LONGEST_MESSAGE)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    return socket


def _monitor(socket: zmq.asyncio.Socket, events: int) -> zmq.asyncio.Socket:
    """A socket that receives these events of another socket's connections."""
    address = f"inproc://monitor-{uuid.uuid4()}"
    socket.monitor(address, events)
    monitor: zmq.asyncio.Socket = socket.context.socket(zmq.PAIR)
    # A full queue would stop the thread that drives all sockets.
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor
