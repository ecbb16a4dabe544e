"""The sending end of ``tcp://``: keeps messages until they are confirmed, across broken connections."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from itertools import islice

import zmq

from sglang_omni.pipeline.transport.base import ControlPlaneClosed
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.limits import (
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    QUEUED_BYTES,
    QUEUED_MESSAGES,
    UNREACHABLE_S,
)
from sglang_omni.pipeline.transport.monitor import SocketMonitor
from sglang_omni.pipeline.transport.send_queue import Linger, WaitingSenders
from sglang_omni.pipeline.transport.tcp.link import EXPECTS, HELLO, HELLO_MAGIC, NOTHING_MORE
from sglang_omni.pipeline.transport.tcp.sockets import MAX_MESSAGE, connect_tcp, required
from sglang_omni.pipeline.transport.zmq_socket import state_fd, zmq_socket

logger = logging.getLogger(__name__)

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)

# Takes the messages that may not have arrived, and why.
OnLost = Callable[[list[bytes], str], None]


class TcpPushSocket:
    """Connects to ``endpoint`` and sends; a ``Sender``. ``link.py`` says what both ends exchange.

    Its connection is in one of four states; messages are sent only while it is open, and kept in all:

        WAITING --timer--> CONNECTING --handshake--> GREETING --EXPECTS--> OPEN
           ^                   |                      |    ^                |
           +--- DISCONNECTED --+----------------------+----|----------------+
                                                           +- NOTHING_MORE -+

    ``_retry`` is the timer of WAITING; ``_unreachable`` runs from CONNECTING until the next handshake;
    ``_is_open`` tells OPEN. HELLO is sent on entering GREETING. A closed socket does not connect again.

    The kept messages are numbered, and a new connection begins again with the first that is not confirmed:

        _first              _next                 _first_unsent             _first + len(_kept)
          | sent on this      | sent on an earlier   | never sent             |
          | connection        | one, not on this     |                        |

    Args:
        endpoint: Where the receiver is.
        keys: The run's keys.
        on_lost: Called with what is lost; without it, messages are kept until the receiver can be reached.

    Raises:
        ValueError: There are no keys.
    """

    def __init__(self, endpoint: str, keys: RunKeys | None, on_lost: OnLost | None = None) -> None:
        self.endpoint = endpoint
        self._keys = required(keys, endpoint)
        self._on_lost = on_lost
        self._name = secrets.token_bytes(16)
        # The name of the process that the messages were sent to.
        self._receiver: bytes | None = None
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._first = self._first_unsent = self._next = 0
        self._waiting: WaitingSenders[bytes] = WaitingSenders()
        self._is_open = False
        self._retry_s = FIRST_RETRY_S
        self._retry: asyncio.TimerHandle | None = None
        self._unreachable: asyncio.TimerHandle | None = None
        self._complained = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._linger = Linger()
        self._connect()

    async def send(self, message: bytes) -> None:
        """Waits only while too much is unconfirmed.

        Raises:
            ControlPlaneClosed: The socket is closed.
            ValueError: The message is larger than the receiver takes.
        """
        if self._closed:
            raise ControlPlaneClosed
        if len(message) > MAX_MESSAGE:
            raise ValueError(
                f"a message of {len(message)} bytes, more than the {MAX_MESSAGE} that go over tcp://: large "
                "data belongs in tensors, which the relay carries"
            )
        if not self._waiting and self._has_room():
            self._keep(message)
            self._send_kept()
            # Sending may have consumed the edge by which libzmq signals a confirmation.
            self._read()
            return
        await self._waiting.wait(message)

    def redirect(self, endpoint: str) -> None:
        """Connects to another endpoint of the receiver; what is not confirmed is settled with it there."""
        self.endpoint = endpoint
        self._reconnect()

    def close(self) -> None:
        """Takes no more messages; kept ones may still be confirmed within ``LINGER_S``."""
        if self._closed:
            return
        self._closed = True
        self._waiting.close()
        if self._kept:
            self._linger.begin(f"last messages to {self.endpoint}", self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        if not self._linger.end():
            return
        if self._kept:
            logger.info("%d messages to %s may not have arrived", len(self._kept), self.endpoint)
            self._kept.clear()
        self._cancel_unreachable()
        self._disconnect()

    # --- connection -------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._retry = None
        if self._on_lost is not None and self._unreachable is None:
            self._unreachable = self._loop.call_later(UNREACHABLE_S, self._give_up)
        self._socket = zmq_socket(zmq.DEALER)
        # Its queue belongs to this connection alone, and is kept in ``_kept`` as well.
        self._socket.linger = 0
        # No limit: ``_has_room`` counts the messages under way.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._monitor = SocketMonitor(self._socket, _EVENTS, self._on_event)
        self._fd = state_fd(self._socket)
        self._loop.add_reader(self._fd, self._read)
        try:
            connect_tcp(self._socket, self.endpoint, self._keys)
        except zmq.ZMQError as exc:
            # Treated as a peer that is away, until ``redirect`` gives another endpoint.
            logger.error("Cannot send to %s: %s", self.endpoint, exc)

    def _disconnect(self) -> None:
        self._is_open = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if not self._socket.closed:
            self._monitor.close()
            self._loop.remove_reader(self._fd)
            self._socket.close()

    def _reconnect(self, delay: float = 0.0) -> None:
        """Opens a new socket: what is queued in the old one must not go out on the next connection."""
        self._disconnect()
        if self._closed:
            self._leave()
        elif delay:
            self._retry = self._loop.call_later(delay, self._connect)
        else:
            self._connect()

    def _on_event(self, event: zmq.Event) -> None:
        match event:
            case zmq.Event.HANDSHAKE_SUCCEEDED:
                self._say_hello()
            case zmq.Event.DISCONNECTED:
                self._read()  # The receiver may have said that it leaves.
                if self._is_open:
                    logger.info("Lost the connection to %s, and connects anew", self.endpoint)
                self._reconnect(self._retry_s)
                self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
            case _ if not self._complained:
                self._complained = True
                logger.warning(
                    "%s refuses the connection (%s): it is not of this run. Goes on trying",
                    self.endpoint,
                    event.name,
                )

    def _say_hello(self) -> None:
        self._cancel_unreachable()
        hello = HELLO.pack(HELLO_MAGIC, self._name, self._first, self._first_unsent)
        try:
            self._socket.send(hello, zmq.NOBLOCK)
        except zmq.Again:
            pass  # The connection is gone already; its DISCONNECTED event is on its way.
        self._read()

    def _cancel_unreachable(self) -> None:
        if self._unreachable is not None:
            self._unreachable.cancel()
            self._unreachable = None

    def _give_up(self) -> None:
        self._unreachable = self._loop.call_later(UNREACHABLE_S, self._give_up)
        self._lose(len(self._kept), f"no peer was reached at {self.endpoint} for {UNREACHABLE_S:g} s")

    # --- messages ---------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads which message the receiver expects next, which confirms all before it."""
        while not self._socket.closed:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frame) != EXPECTS.size:
                logger.warning("Dropped what %s said: it is no receiver of this version", self.endpoint)
                continue
            receiver, expected = EXPECTS.unpack(frame)
            if expected == NOTHING_MORE:
                self._is_open = False
                logger.info("The receiver at %s has left", self.endpoint)
            elif self._is_open:
                self._confirm(expected)
            else:
                self._open(receiver, expected)

    def _open(self, receiver: bytes, expected: int) -> None:
        if receiver == self._receiver:
            self._confirm(expected)
        else:
            self._receiver = receiver
            self._lose(self._first_unsent - self._first, f"the process at {self.endpoint} is another one now")
        self._is_open, self._complained = True, False
        self._retry_s = FIRST_RETRY_S
        self._next = self._first
        self._send_kept()

    def _has_room(self) -> bool:
        return len(self._kept) < QUEUED_MESSAGES and self._kept_bytes < QUEUED_BYTES

    def _keep(self, message: bytes) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message)

    def _send_kept(self) -> None:
        if not self._is_open:
            return
        unsent = self._first + len(self._kept) - self._next
        # A deque is quick at its ends, and one message is the common case.
        batch = [self._kept[-1]] if unsent == 1 else list(islice(self._kept, len(self._kept) - unsent, None))
        for message in batch:
            try:
                self._socket.send(message, zmq.NOBLOCK)
            except zmq.Again:
                return  # The connection is gone; its DISCONNECTED event is on its way.
            self._next += 1
            self._first_unsent = max(self._first_unsent, self._next)

    def _confirm(self, expected: int) -> None:
        self._forget(expected - self._first)
        self._go_on()

    def _lose(self, count: int, reason: str) -> None:
        lost = self._forget(count)
        self._first_unsent = max(self._first_unsent, self._first)
        self._go_on()
        if lost:
            logger.warning("%d messages to %s are lost: %s", len(lost), self.endpoint, reason)
            if self._on_lost is not None:
                self._on_lost(lost, reason)

    def _forget(self, count: int) -> list[bytes]:
        """Takes the first messages out of the kept ones."""
        forgotten = [self._kept.popleft() for _ in range(min(count, len(self._kept)))]
        self._first += len(forgotten)
        self._kept_bytes -= sum(map(len, forgotten))
        return forgotten

    def _go_on(self) -> None:
        """Uses the room that ``_forget`` has made: for waiting senders, or to end a closed socket."""
        self._waiting.admit(self._has_room, self._keep)
        self._send_kept()
        if self._closed and not self._kept:
            self._leave()
