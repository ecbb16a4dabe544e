"""A scheduler for stages whose work is done elsewhere: a coroutine for each request, in one event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.event_loop import EventLoopThread
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.recent_ids import RecentIds

_END = object()


@dataclass(eq=False)
class AsyncRequest:
    """A request as its coroutine sees it.

    Attributes:
        payload: Its payload.
    """

    payload: StagePayload
    _outbox: Outbox[OutgoingMessage]
    _stream: asyncio.Queue[Any]

    def put(self, chunk: Any) -> None:
        """Puts out a chunk for the stage's targets, or the caller if it has none."""
        self.send(OutgoingMessage(self.payload.request_id, "stream", chunk))

    def send(self, message: OutgoingMessage) -> None:
        """Puts out a chunk of which the sender says where it goes."""
        self._outbox.put(message)

    async def stream(self) -> AsyncIterator[Any]:
        """The items of the incoming stream, up to its end."""
        while (item := await self._stream.get()) is not _END:
            yield item


@dataclass(eq=False)
class _Tracked:
    stream: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None


class AsyncScheduler:
    """Runs ``work(request)`` for each request. What it returns is the ``data`` of the resulting payload; what
    it raises is that request's error. An abort cancels it.

    Args:
        work: Runs in ``thread``'s event loop and must not block it.
        thread: The loop; stopped with the scheduler.
        max_concurrency: Requests that are worked on at once; others wait, the oldest first.
        closing: Awaited in the loop before it is stopped.
    """

    def __init__(
        self,
        work: Callable[[AsyncRequest], Awaitable[Any]],
        thread: EventLoopThread,
        *,
        max_concurrency: int = 64,
        closing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {max_concurrency}")
        self.inbox: Inbox[IncomingMessage] = Inbox()
        self.outbox: Outbox[OutgoingMessage] = Outbox()
        self._work = work
        self._thread = thread
        self._closing = closing
        self._max_concurrency = max_concurrency
        self._places = asyncio.Semaphore(max_concurrency)
        self._requests: dict[str, _Tracked] = {}
        self._num_running = 0
        # Chunks of an aborted or failed request may still arrive.
        self._dropped = RecentIds()
        self._commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Serves until ``stop``; blocks."""
        call = self._thread.loop.call_soon_threadsafe
        try:
            while True:
                message = self.inbox.get()
                if message is not _WAKE:
                    call(self._receive, message)
                    continue
                # One command per wake-up: an abort must not overtake its request.
                command = self._commands.get()
                if command is None:
                    return
                call(self._drop, command)
        finally:
            if self._closing is not None:
                self._thread.run(self._close(self._closing))
            self._thread.stop()

    def stop(self) -> None:
        self._command(None)

    def abort(self, request_id: str) -> None:
        """Cancels the request's coroutine."""
        self._command(request_id)

    def stats(self) -> dict[str, int]:
        """The numbers of requests that are worked on, that may be at once, and that wait."""
        return {
            "num_running_reqs": self._num_running,
            "max_running_reqs": self._max_concurrency,
            "num_queue_reqs": max(0, len(self._requests) - self._num_running),
        }

    def _command(self, command: str | None) -> None:
        self._commands.put(command)
        self.inbox.put(_WAKE)

    def _receive(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        if message.type == "new_request":
            self._dropped.discard(request_id)
        elif request_id in self._dropped:
            return
        tracked = self._requests.setdefault(request_id, _Tracked())
        match message.type:
            case "new_request":
                tracked.task = self._thread.loop.create_task(self._serve(message.data, tracked))
            case "stream_chunk":
                tracked.stream.put_nowait(message.data.data)
            case "stream_done":
                tracked.stream.put_nowait(_END)

    def _drop(self, request_id: str) -> None:
        tracked = self._requests.pop(request_id, None)
        self._dropped.add(request_id)
        if tracked is not None and tracked.task is not None:
            tracked.task.cancel()

    async def _serve(self, payload: StagePayload, tracked: _Tracked) -> None:
        request_id = payload.request_id
        async with self._places:
            self._num_running += 1
            try:
                data = await self._work(AsyncRequest(payload, self.outbox, tracked.stream))
            except Exception as exc:  # noqa: BLE001  whatever it raises is that request's error
                ending = OutgoingMessage(request_id, "error", exc)
            else:
                result = StagePayload(request_id, payload.request, data)
                ending = OutgoingMessage(request_id, "result", result)
            finally:
                self._num_running -= 1
        # An aborted request has been dropped, and another may have its id.
        if self._requests.get(request_id) is tracked:
            del self._requests[request_id]
            self._dropped.add(request_id)
            self.outbox.put(ending)

    async def _close(self, closing: Callable[[], Awaitable[None]]) -> None:
        await closing()


# Put into the inbox to interrupt a wait for messages.
_WAKE = IncomingMessage("", "stream_done")
