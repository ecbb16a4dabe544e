"""The receiving side of a stage: from the control plane's messages to the scheduler's inbox.

Messages of other stages wait in a queue for each source until their items are read; items of stages in the
same process come as objects. Then both are merged into what the scheduler gets: a payload that is complete,
and stream messages, held back while their payload is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Queue
from typing import Any

from sglang_omni.config.plan.instances import stage_of
from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR
from sglang_omni.pipeline.stage.edges.edge import End, Item, Payload, StreamChunk
from sglang_omni.pipeline.stage.edges.queue import EdgeQueue
from sglang_omni.pipeline.stage.edges.relayed import read_item
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.failures import transfer_failure
from sglang_omni.pipeline.stage.input import InputHandler
from sglang_omni.pipeline.stage.requests import RequestTable
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import (
    TRACED,
    DataReadyBatchMessage,
    DataReadyMessage,
    Message,
    MoreInputMessage,
    StagePayload,
    SubmitMessage,
)
from sglang_omni.relay.base import Relay
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.queues import Inbox

logger = logging.getLogger(__name__)

# Messages in the inbox at which no more are read, and at which reading goes on.
_INBOX_HIGH = 1024
_INBOX_LOW = 256
# Messages whose item is still to be read, at which no more are received, and at which receiving goes on.
_UNREAD_HIGH = 4096
_UNREAD_LOW = 1024
# As for the inbox, in bytes that came through a relay: beyond this, payloads stay with their sender, whose
# credits then run out.
_BYTES_HIGH = 1 << 30
_BYTES_LOW = _BYTES_HIGH // 2
# How often an inbox that cannot notify is checked.
_CHECK_S = 0.005


class ItemReceiver:
    """Takes messages and items, and puts the scheduler's work into its inbox.

    Sources are instances; the input handler and the scheduler get the names of their stages.

    Args:
        instance: The receiving instance.
        requests: The stage's requests; a dropped one gets nothing any more.
        relays: The relays that items of other processes come over.
        inbox: The scheduler's.
        input_handler: Decides when a request's payloads are complete, and merges them.
        streams_may_start: True if chunks may come before the payload of their request.
        control: Takes the messages that bring no work; returns False to get no more messages.
        fail: ``fail(request_id, error)`` ends a request; the error as it was raised, or its text.
        resume: Called when ``take`` may be called again, after it returned False.
    """

    def __init__(
        self,
        instance: str,
        requests: RequestTable,
        relays: EdgeRelays,
        inbox: Queue[Any],
        input_handler: InputHandler,
        *,
        streams_may_start: bool,
        control: Callable[[Message], bool],
        fail: Callable[[str, str | BaseException], None],
        resume: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._requests = requests
        self._relays = relays
        self._input_handler = input_handler
        self._streams_may_start = streams_may_start
        self._control = control
        self._fail = fail
        self._backpressure = Backpressure(inbox, self._count_unread, resume)
        # By source. Not every source needs a relay: signals are messages alone.
        self._queues: dict[str, EdgeQueue] = {}
        self._relay_of: dict[str, Relay] = {}

    def take(self, message: Message) -> bool:
        """Takes a message of the control plane. Returns False to get no more until ``resume``."""
        try:
            if isinstance(message, DataReadyMessage | DataReadyBatchMessage):
                self._queue(message)
            elif isinstance(message, SubmitMessage):
                self.accept(Payload(message.request_id, None, message.data, message.replicas))
            elif isinstance(message, MoreInputMessage):
                self.accept(_added(message))
            elif not self._control(message):
                return False
        except Exception:
            request_id = getattr(message, "request_id", "-")
            logger.exception(
                "Stage %s: a %s message of request %s was lost", self._instance, message.type, request_id
            )
        return not self._backpressure.pause_if_full()

    def _queue(self, message: DataReadyMessage | DataReadyBatchMessage) -> None:
        queue = self._queues.get(message.from_stage)
        if queue is None:
            queue = self._open(message.from_stage)
        each = [message] if isinstance(message, DataReadyMessage) else list(message.messages())
        if queue is None:
            error = f"no edge leads from {message.from_stage!r} to {self._instance!r}"
            for one in each:
                self._fail(one.request_id, error)
        elif len(each) == 1:
            queue.put(each[0].request_id, self.read, each[0])
        else:
            queue.put_together(self._read_each, each)

    async def receive(self, item: Item) -> None:
        """Takes an item of a stage in this process. Waits while this stage is full."""
        if type(item) is not End:
            await self._backpressure.wait()
        self.accept(item)

    async def read(self, message: DataReadyMessage) -> None:
        """Reads and accepts the item that a message announces. Waits while this stage is full."""
        request_id, source = message.request_id, message.from_stage
        if message.error is not None or message.is_done:
            self.accept(End(request_id, source, message.error, message.replicas))
            return
        await self._backpressure.wait()
        item: Item
        try:
            relay = self._relay_of.get(source)
            if relay is None:
                relay = self._relay_of[source] = self._relays.from_(source)
            # A dropped request's data is read all the same: that is what gives its slot back.
            item = await read_item(relay, message)
        except Exception as exc:  # noqa: BLE001  whatever the bytes hold, it is that request's failure
            self._relays.cleanup(request_id)
            self._fail(request_id, transfer_failure("relay read", exc))
            return
        self.accept(item)

    async def _read_each(self, messages: Sequence[DataReadyMessage]) -> None:
        for message in messages:
            await self.read(message)

    def accept(self, item: Item) -> None:
        """Gives the scheduler what it may have now that ``item`` is here."""
        if type(item) is Payload:
            self._accept_payload(item)
        elif type(item) is StreamChunk:
            chunk = StreamItem(item.chunk_id, item.data, stage_of(item.source), item.metadata)
            self._accept_stream(item, IncomingMessage(item.request_id, "stream_chunk", chunk), item.nbytes)
        elif type(item) is End:
            if item.error is not None:
                self._fail(item.request_id, f"stream from {item.source!r} failed: {item.error}")
            else:
                done = IncomingMessage(item.request_id, "stream_done", stage_of(item.source))
                self._accept_stream(item, done, 0)

    def stop(self) -> None:
        """Lets every sender go on: nothing waits for a stage that stops."""
        self._backpressure.close()

    async def close(self) -> None:
        """Drops what is still unread."""
        for queue in self._queues.values():
            await queue.close()

    def _open(self, source: str) -> EdgeQueue | None:
        """The queue of a new source; None if no edge leads from it."""
        if not self._relays.expects(source):
            return None
        queue = EdgeQueue(f"{source}->{self._instance}", self._backpressure.update)
        self._queues[source] = queue
        return queue

    def _count_unread(self) -> int:
        return sum(map(len, self._queues.values()))

    def _accept_payload(self, item: Payload) -> None:
        request_id, source, payload = item.request_id, item.source, item.data
        if self._requests.is_dropped(request_id):
            return
        record = self._requests.receive_payload(request_id, source, item.replicas)
        record.nbytes += item.nbytes
        try:
            if not isinstance(payload, StagePayload):
                raise TypeError(f"expected a StagePayload, got a {type(payload).__name__}")
            if payload.request.metadata.get(TRACED):
                self._requests.trace(request_id).hop("from", source or "coordinator")
            sender = "coordinator" if source is None else stage_of(source)
            merged = self._input_handler.receive(request_id, sender, payload)
        except Exception as exc:  # noqa: BLE001  a merge function may raise anything
            self._fail(request_id, exc)
            return
        if merged is None:
            return
        if (trace := self._requests.traces.get(request_id)) is not None:
            trace.ready()
        record.started = True
        record.running += 1
        self._backpressure.put(IncomingMessage(request_id, "new_request", merged), record.nbytes)
        for held in record.held:
            self._backpressure.put(held)
        record.held.clear()
        record.nbytes = 0

    def _accept_stream(self, item: StreamChunk | End, message: IncomingMessage, nbytes: int) -> None:
        request_id = item.request_id
        if self._requests.is_dropped(request_id):
            return
        ends = type(item) is End
        record = self._requests.receive_stream(request_id, item.source, item.replicas, ends=ends)
        if record is None:
            return
        if record.started or self._streams_may_start:
            self._backpressure.put(message, nbytes)
        elif record.has_payload or message.type == "stream_done":
            try:
                record.hold(message)
                record.nbytes += nbytes
            except RuntimeError as exc:
                self._fail(request_id, str(exc))
        else:
            self._fail(
                request_id,
                f"a stream chunk from {item.source!r} arrived before the request's payload; a stage that can "
                "start from a stream sets can_accept_stream_before_payload",
            )


def _added(message: MoreInputMessage) -> StreamChunk | End:
    """What a caller has added to a request's input, or that this is all."""
    request_id, replicas = message.request_id, message.replicas
    if message.chunk_id is None:
        return End(request_id, COORDINATOR, replicas=replicas)
    return StreamChunk(request_id, COORDINATOR, message.chunk_id, message.chunk, replicas=replicas)


class Backpressure:
    """The scheduler's inbox, and what waits while it is full.

    Senders in the same process then wait in their edges' queues, and messages of other processes stay unread
    in this stage's. If those hold enough, no more are taken from the sockets. So the senders' queues and
    outboxes fill up, and in the end their schedulers wait. Aborts come another way and never wait.

    Two states change, the inbox's in ``put`` and ``update``, receiving in ``pause_if_full`` and ``update``:

        open ------- at _INBOX_HIGH messages or _BYTES_HIGH --> full
        full ------- at _INBOX_LOW and _BYTES_LOW ------------> open
        receiving -- full, or at _UNREAD_HIGH messages -------> paused
        paused ----- open, and at _UNREAD_LOW: calls resume --> receiving

    Args:
        inbox: The scheduler's.
        unread: Returns how many messages wait to be read.
        resume: Called when receiving goes on.
    """

    def __init__(self, inbox: Queue[Any], unread: Callable[[], int], resume: Callable[[], None]) -> None:
        self._inbox = inbox
        self._unread = unread
        self._resume = resume
        # Bytes of each message in the inbox, in its order; and their sum.
        self._sizes: deque[int] = deque()
        self._nbytes = 0
        self._open = asyncio.Event()
        self._open.set()
        self._paused = False
        self._closed = False

    def put(self, message: Any, nbytes: int = 0) -> None:
        """Hands the scheduler a message that brought ``nbytes`` of memory with it."""
        self._sizes.append(nbytes)
        self._nbytes += nbytes
        self._inbox.put(message)
        waiting = self._forget_taken()
        is_full = waiting >= _INBOX_HIGH or self._nbytes >= _BYTES_HIGH
        if is_full and self._open.is_set() and not self._closed:
            self._open.clear()
            self._watch_inbox()

    async def wait(self) -> None:
        """Returns when the inbox is open."""
        while not self._open.is_set():
            await self._open.wait()

    def pause_if_full(self) -> bool:
        """Pauses receiving if the stage is full. Returns True while receiving is paused."""
        if not self._closed and (not self._open.is_set() or self._unread() >= _UNREAD_HIGH):
            self._paused = True
        return self._paused

    def update(self) -> None:
        """Opens the inbox and resumes receiving, if enough was taken or read."""
        if not self._open.is_set():
            if self._forget_taken() > self._low_level():
                self._watch_inbox()
                return
            self._open.set()
        if self._paused and self._unread() <= _UNREAD_LOW:
            self._paused = False
            self._resume()

    def close(self) -> None:
        """The stage is about to stop: nothing waits for it any more."""
        self._closed = True
        self._paused = False
        self._open.set()

    def _forget_taken(self) -> int:
        """Counts no longer what the scheduler has taken. Returns how many messages are left."""
        waiting = self._inbox.qsize()
        while len(self._sizes) > waiting:
            self._nbytes -= self._sizes.popleft()
        return waiting

    def _low_level(self) -> int:
        """How many messages, the newest ones, may be left in the inbox when it opens again."""
        if self._nbytes <= _BYTES_LOW:
            return _INBOX_LOW
        kept, nbytes = 0, 0
        for size in reversed(self._sizes):
            nbytes += size
            if nbytes > _BYTES_LOW:
                break
            kept += 1
        return min(kept, _INBOX_LOW)

    def _watch_inbox(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self._inbox, Inbox):
            self._inbox.when_low(self._low_level(), partial(_call_soon, loop, self.update))
        else:
            loop.call_later(_CHECK_S, self.update)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    # The scheduler may take its last messages after everything else has ended.
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
