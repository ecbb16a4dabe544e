"""A scheduler for stages with streams as input or output: vocoders, sentence-wise speech, recognition."""

from __future__ import annotations

import logging
import queue
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sglang_omni.gpu_faults import after_failure
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.recent_ids import RecentIds
from sglang_omni.scheduling.step_monitor import StepMonitor
from sglang_omni.scheduling.turns import SchedulePolicy, Turn, turns
from sglang_omni.scheduling.work_clock import WorkClock

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class BatchItem:
    """Work that a session yields, to be done in a batch with that of other requests.

    Attributes:
        key: Items with equal keys can be in one batch.
        max_batch_size: The most items in its batch.
    """

    key: Hashable
    max_batch_size: int


class StreamSession(ABC):
    """One request's work.

    Its methods yield chunks, None to let other requests run, or a ``BatchItem``, which is done when they
    continue.

    Attributes:
        num_waiting: Steps that wait behind the present one: items of the incoming stream, and its end.
    """

    num_waiting = 0

    @abstractmethod
    def begin(self, payload: StagePayload) -> Iterator[Any]:
        """Starts on the request. Always called first."""

    def feed(self, data: Any) -> Iterator[Any]:
        """Takes one item of the incoming stream."""
        raise TypeError(f"{type(self).__name__} takes no stream")

    def end(self) -> Iterator[Any]:
        """Finishes pending work after the last item of the incoming stream, if there is one."""
        return iter(())

    @abstractmethod
    def result(self) -> Any:
        """Returns the ``data`` of the resulting payload. Called once, after all steps."""

    def close(self) -> None:  # noqa: B027 - most hold nothing but memory
        """Frees what the request holds. Called last, and once, however the request ends."""


@dataclass
class _Request:
    session: StreamSession
    turn: Turn
    payload: StagePayload | None = None
    # Steps of stream items that came before the payload, and steps left to run, in order.
    early: deque[Callable[[], Iterator[Any]]] = field(default_factory=deque)
    steps: deque[Callable[[], Iterator[Any]]] = field(default_factory=deque)
    running: Iterator[Any] | None = None
    ending: bool = False


class StreamScheduler:
    """Runs one session for each request, and interleaves them step by step.

    Args:
        open_session: Makes a request's session.
        expects_stream: True for a payload with an incoming stream: its request ends after the stream.
        wants_chunks: True for a payload whose chunks are put out at once. The result is complete either way.
        batch_compute_fn: Does ``BatchItem``s with equal keys. If it fails, it must leave the items unchanged:
            they are then done one by one, so that a fault is one request's.
        schedule_policy: ``"fcfs"``: the request goes on that has waited longest. ``"deadline"``: the one goes
            on whose listener runs out of sound first.
        listens: True for a payload whose caller waits for its sound; by default ``wants_chunks``.
        max_running: The most requests that have begun and not ended; None for any number. Others wait in
            line, in the order in which they came, and hold nothing but their payload.
        clock: The time in seconds.

    Raises:
        ValueError: The policy is unknown, or ``max_running`` is below 1.
    """

    def __init__(
        self,
        open_session: Callable[[], StreamSession],
        *,
        expects_stream: Callable[[StagePayload], bool],
        wants_chunks: Callable[[StagePayload], bool],
        batch_compute_fn: Callable[[list[Any]], None] | None = None,
        schedule_policy: SchedulePolicy = "fcfs",
        listens: Callable[[StagePayload], bool] | None = None,
        max_running: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_running is not None and max_running < 1:
            raise ValueError(f"max_running must be at least 1, got {max_running}")
        self.inbox: queue.Queue[IncomingMessage] = Inbox()
        self.outbox: queue.Queue[OutgoingMessage] = Outbox()
        self.work_clock = WorkClock()
        self.steps = StepMonitor()
        self._open_session = open_session
        self._expects_stream = expects_stream
        self._wants_chunks = wants_chunks
        self._listens = listens or wants_chunks
        self._open_turn = turns(schedule_policy, clock)
        self._requests: dict[str, _Request] = {}
        self._max_running = max_running
        # Requests that have begun, and payloads that wait until one of them ends, oldest first.
        self._begun: set[str] = set()
        self._line: dict[str, IncomingMessage] = {}
        self._ready: dict[str, None] = {}  # oldest first
        self._batch_compute_fn = batch_compute_fn
        self._batchable: dict[str, BatchItem] = {}  # oldest first
        self._num_running = 0
        self._commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # Chunks of an aborted or failed request may still arrive.
        self._dropped = RecentIds()

    def start(self) -> None:
        """Serves until ``stop``; blocks.

        Raises:
            GpuLost: A failure has left the GPU unusable for this process.
        """
        while True:
            message = self._next_message(wait=not self._ready and not self._batchable)
            while message is not None:
                if message is _WAKE:
                    if self._run_command():
                        return
                else:
                    self._receive(message)
                message = self._next_message(wait=False)
            if self._ready:
                self._num_running = 1
                request_id = min(self._ready, key=self._due)
                del self._ready[request_id]
                self._step(request_id)
            elif self._batchable:
                batch = self._next_batch()
                self._num_running = len(batch)
                self._compute(batch)
            self._num_running = 0

    def stop(self) -> None:
        self._commands.put(None)
        self.inbox.put(_WAKE)

    def abort(self, request_id: str) -> None:
        """Drops a request after the next chunk of the present step."""
        self._commands.put(request_id)
        self.inbox.put(_WAKE)

    def stats(self) -> dict[str, int]:
        """The numbers of requests in a step or batch, and of those that wait for one."""
        waiting = len(self._ready) + len(self._batchable) + len(self._line)
        return {"num_running_reqs": self._num_running, "num_queue_reqs": waiting}

    def _next_message(self, *, wait: bool) -> IncomingMessage | None:
        try:
            return self.inbox.get(block=wait)
        except queue.Empty:
            return None

    def _run_command(self) -> bool:
        """Runs one command; True to stop. One per wake-up: an abort must not overtake its request."""
        request_id = self._commands.get()
        if request_id is None:
            return True
        self._drop(request_id)
        return False

    def _drop(self, request_id: str) -> None:
        self._line.pop(request_id, None)
        self._ready.pop(request_id, None)
        self._batchable.pop(request_id, None)
        self._dropped.add(request_id)
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._end(request_id, request)

    def _end(self, request_id: str, request: _Request) -> None:
        """Frees what a request holds, and begins the next in line."""
        try:
            request.session.close()
        except Exception:
            # The request is over already; those in line must not wait for it.
            logger.exception("closing the session of request %s failed", request_id)
        self._begun.discard(request_id)
        while self._line and not self._is_full:
            self._receive(self._line.pop(next(iter(self._line))))

    @property
    def _is_full(self) -> bool:
        return self._max_running is not None and len(self._begun) >= self._max_running

    def _receive(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        if message.type == "new_request":
            self._dropped.discard(request_id)
            if self._is_full:
                self._line[request_id] = message
                return
            self._begun.add(request_id)
        elif request_id in self._dropped:
            return
        request = self._requests.get(request_id)
        if request is None:
            request = self._requests[request_id] = _Request(self._open_session(), self._open_turn())
        session = request.session
        waiting = request.early if request.payload is None else request.steps
        match message.type:
            case "new_request":
                request.payload = message.data
                request.turn.begin(listens=self._listens(message.data))
                request.steps.append(partial(session.begin, message.data))
                request.steps.extend(request.early)
                request.early.clear()
                if request.ending or not self._expects_stream(message.data):
                    request.ending = True
                    request.steps.append(session.end)
            case "stream_chunk":
                waiting.append(partial(session.feed, message.data.data))
            case "stream_done":
                request.ending = True
                if request.payload is not None:
                    request.steps.append(session.end)
        if request.running is None and request.steps:
            self._ready.setdefault(request_id)

    def _step(self, request_id: str) -> None:
        """Runs a request up to its next chunk or the end of a step."""
        request = self._requests.get(request_id)
        if request is None or request.payload is None:
            return
        began = self.steps.begin()
        try:
            try:
                if request.running is None:
                    step = request.steps.popleft()
                    request.session.num_waiting = len(request.steps)
                    request.running = step()
                chunk = next(request.running, _END)
            finally:
                self.steps.end()
            self.work_clock.add(request_id, time.perf_counter() - began)
            if isinstance(chunk, BatchItem):
                self._batchable[request_id] = chunk
                return
            if chunk is not _END and chunk is not None and self._wants_chunks(request.payload):
                self.outbox.put(OutgoingMessage(request_id, "stream", chunk))
            if chunk is not _END:
                request.turn.put_out(chunk)
            if chunk is _END:
                request.running = None
                if request.ending and not request.steps:
                    payload = request.payload
                    data = request.session.result()
                    del self._requests[request_id]
                    self._end(request_id, request)
                    self.steps.succeed()
                    self.outbox.put(
                        OutgoingMessage(
                            request_id, "result", StagePayload(payload.request_id, payload.request, data)
                        )
                    )
                    return
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            self.steps.fail(exc, (request_id,))
            self._fail(request_id, exc)
            return
        if request.running is not None or request.steps:
            self._ready[request_id] = None

    def _due(self, request_id: str) -> float:
        return self._requests[request_id].turn.due

    def _next_batch(self) -> dict[str, BatchItem]:
        """The item that is due first, of several the one that has waited longest, and others with its key."""
        key = self._batchable[min(self._batchable, key=self._due)].key
        alike = sorted(
            (request_id for request_id, item in self._batchable.items() if item.key == key), key=self._due
        )
        first = self._batchable[alike[0]]
        return {request_id: self._batchable.pop(request_id) for request_id in alike[: first.max_batch_size]}

    def _compute(self, batch: dict[str, BatchItem]) -> None:
        assert self._batch_compute_fn is not None, "sessions that yield a BatchItem need a batch_compute_fn"
        began = self.steps.begin()
        try:
            try:
                self._batch_compute_fn(list(batch.values()))
            finally:
                self.steps.end()
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            if len(batch) > 1:
                after_failure(exc)
            for request_id, item in batch.items():
                if len(batch) > 1:
                    self._compute({request_id: item})
                else:
                    self.steps.fail(exc, (request_id,))
                    self._fail(request_id, exc)
            return
        self.work_clock.add_to_all(batch, time.perf_counter() - began)
        self._ready.update(dict.fromkeys(batch))

    def _fail(self, request_id: str, error: Exception) -> None:
        self._drop(request_id)
        self.outbox.put(OutgoingMessage(request_id, "error", error))


_END = object()
# Put into the inbox to interrupt a wait for messages.
_WAKE = IncomingMessage("", "stream_done")
