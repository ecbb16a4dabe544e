"""Control messages as bytes, and a reader that turns what sockets receive into messages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from sglang_omni.pipeline.transport.base import ControlPlaneClosed, Deliver, Receiver
from sglang_omni.pipeline.transport.limits import READ_AHEAD
from sglang_omni.pipeline.transport.tcp.sockets import SCHEME as TCP
from sglang_omni.proto import DataReadyMessage, Message, codec, parse_message

logger = logging.getLogger(__name__)


def encode_message(message: Message) -> bytes:
    """Raises TypeError or ValueError, naming the path, if the message holds what cannot be encoded."""
    return codec.pack(message.to_dict())


def decode_message(frame: bytes, *, trusted: bool = False) -> Message:
    """The message in ``frame``.

    Args:
        frame: What ``encode_message`` returned.
        trusted: Whether it comes from a process of this host and user, and so may name any class.

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
        if not trusted and isinstance(message, DataReadyMessage):
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
