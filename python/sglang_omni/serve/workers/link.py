"""The link between the main process and an API worker: messages both ways on a pair of Unix sockets.

Neither end ever connects again: what one has sent arrives before its end does, and nothing of a worker that
has died reaches the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sglang_omni.proto import codec
from sglang_omni.serve.workers.failures import failure_of, fields_of

logger = logging.getLogger(__name__)

# What does a message's work, or a call's: then what it returns, or its awaitable gives, is the answer.
Handler = Callable[..., Any]

_SIZE_BYTES = 4
_CALL, _ANSWER, _FAILURE, _CANCEL = "call", "answer", "failure", "cancel"


class LinkClosed(ConnectionError):
    """The other process has ended."""

    def __init__(self) -> None:
        super().__init__("the process at the other end has ended")


class WorkerLink(asyncio.Protocol):
    """One end of the link. What is sent in one turn of the event loop leaves in one write.

    A handler of a message must not raise; what one of a call raises is raised by the call at the other end.

    Args:
        on_end: Called once the other end is gone.

    Attributes:
        unsent: Bytes that the other end has not taken yet.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._handlers: dict[str, Handler] = {
            _CALL: self._on_call,
            _ANSWER: self._on_answer,
            _FAILURE: self._on_failure,
            _CANCEL: self._on_cancel,
        }
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        # What is to leave at the end of this turn, and what posts more then.
        self._leaving: list[bytes] = []
        self._collecting: list[Callable[[], None]] = []
        self._is_ending_turn = False
        self._taken = asyncio.Event()
        self._taken.set()
        # The parts of a message that is not complete, their bytes in all, and how many it takes to go on.
        self._parts: list[bytes] = []
        self._size, self._needed = 0, _SIZE_BYTES
        self._numbers = itertools.count()
        # Calls of this end that are not answered, and the other end's that this one works on.
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._working: dict[int, asyncio.Task[None]] = {}

    @classmethod
    async def over(cls, sock: socket.socket, on_end: Callable[[], None]) -> WorkerLink:
        """The link over one socket of a pair, which it closes at its end."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_end), sock=sock)
        return link

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Handle messages and calls of these kinds, the messages in the order in which they were sent."""
        self._handlers.update(handlers)

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def post(self, kind: str, *values: Any) -> None:
        """Sends a message, unless the other end is gone.

        Raises:
            TypeError, ValueError: A value cannot be encoded; nothing is sent.
        """
        body = codec.pack((kind, values))
        if self._is_closed:
            return
        self._end_turn_soon()
        self._leaving += (len(body).to_bytes(_SIZE_BYTES, "big"), body)

    async def call(self, kind: str, *values: Any) -> Any:
        """What the other end's handler returns. Cancelled here, it is cancelled there.

        Raises:
            LinkClosed: The other end is gone.
            TypeError, ValueError: A value cannot be encoded.
            Exception: What the handler raised, as ``failures`` brings it here.
        """
        if self._is_closed:
            raise LinkClosed
        number = next(self._numbers)
        self.post(_CALL, number, kind, values)
        answer = self._calls[number] = self._loop.create_future()
        try:
            return await answer
        except asyncio.CancelledError:
            self.post(_CANCEL, number)
            raise
        finally:
            self._calls.pop(number, None)

    def at_end_of_turn(self, collect: Callable[[], None]) -> None:
        """Calls ``collect`` once this turn of the event loop is over; what it posts leaves at once."""
        self._collecting.append(collect)
        self._end_turn_soon()

    async def taken(self) -> None:
        """Returns once the other end is not behind with what was sent to it."""
        await self._taken.wait()

    def close(self) -> None:
        """Ends the link; what was sent still leaves."""
        self._end_turn()
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        self._transport = transport

    def pause_writing(self) -> None:
        self._taken.clear()

    def resume_writing(self) -> None:
        self._taken.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._leaving.clear()
        self._taken.set()
        for task in list(self._working.values()):
            task.cancel()
        for answer in list(self._calls.values()):
            if not answer.done():
                answer.set_exception(LinkClosed())
        self._on_end()

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        if len(self._parts) > 1:
            data = b"".join(self._parts)
        at = 0
        while (left := len(data) - at) >= (needed := self._next_size(data, at)):
            self._handle(data[at + _SIZE_BYTES : at + needed])
            at += needed
        self._parts = [data[at:]] if left else []
        self._size, self._needed = left, needed

    # --- messages ---------------------------------------------------------------------------------

    @staticmethod
    def _next_size(data: bytes, at: int) -> int:
        """Bytes of the message that begins there, or of its length, if that is not complete."""
        end = at + _SIZE_BYTES
        return _SIZE_BYTES if len(data) < end else _SIZE_BYTES + int.from_bytes(data[at:end], "big")

    def _handle(self, body: bytes) -> None:
        kind, values = codec.unpack(body, trusted=True)
        try:
            self._handlers[kind](*values)
        except Exception:
            logger.exception("A message %r of the other process could not be handled", kind)

    def _end_turn_soon(self) -> None:
        if not self._is_ending_turn:
            self._is_ending_turn = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        collecting, self._collecting = self._collecting, []
        for collect in collecting:
            collect()
        self._is_ending_turn = False
        if self._leaving and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(self._leaving)
        self._leaving = []

    def _on_call(self, number: int, kind: str, values: tuple[Any, ...]) -> None:
        try:
            result = self._handlers[kind](*values)
        except Exception as exc:  # noqa: BLE001  raised where it was called
            self.post(_FAILURE, number, fields_of(exc))
            return
        if asyncio.iscoroutine(result):
            task = self._working[number] = asyncio.ensure_future(self._work(number, result))
            task.add_done_callback(lambda _: self._working.pop(number, None))
        else:
            self.post(_ANSWER, number, result)

    async def _work(self, number: int, work: Awaitable[Any]) -> None:
        try:
            self.post(_ANSWER, number, await work)
        except Exception as exc:  # noqa: BLE001  raised where it was called
            self.post(_FAILURE, number, fields_of(exc))

    def _on_answer(self, number: int, result: Any) -> None:
        if (answer := self._calls.get(number)) is not None and not answer.done():
            answer.set_result(result)

    def _on_failure(self, number: int, fields: dict[str, Any]) -> None:
        if (answer := self._calls.get(number)) is not None and not answer.done():
            answer.set_exception(failure_of(fields))

    def _on_cancel(self, number: int) -> None:
        if (task := self._working.get(number)) is not None:
            task.cancel()
