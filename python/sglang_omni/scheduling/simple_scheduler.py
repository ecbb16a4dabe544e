"""SimpleScheduler: a stage that calls a function for each request, or for a batch of them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, Queue
from typing import Any

from sglang_omni.gpu_faults import after_failure, is_out_of_memory
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.recent_ids import RecentIds
from sglang_omni.scheduling.step_monitor import StepMonitor
from sglang_omni.scheduling.threads import run_together
from sglang_omni.scheduling.work_clock import WorkClock

logger = logging.getLogger(__name__)


class SimpleScheduler:
    """Calls ``compute_fn(payload)`` for each request and puts out its result.

    An exception is that request's error. Both functions may be async or return awaitables. This scheduler
    takes whole payloads only; a stage that consumes a stream needs another.

    Args:
        compute_fn: Takes one payload and returns its result.
        batch_compute_fn: Takes a list of payloads if several are waiting, and returns as many results in
            order. An exception in place of a result is that request's error. A batch for which a GPU has too
            little memory is computed again request by request, with ``compute_fn``.
        max_batch_size: The most requests in a batch.
        max_batch_wait_ms: How long a batch waits for more requests after its first.
        request_cost_fn: Returns a payload's cost, for ``max_batch_cost``.
        max_batch_cost: The most that a batch may cost together; a request that costs more runs alone.
        max_concurrency: How many requests run at once, each in a thread; ``compute_fn`` must allow it.
        abort_callback: Called with the id of each aborted request, in the aborting thread.
        sees_abort: Call ``compute_fn(payload, aborted)`` instead. ``aborted()`` is True once the request has
            been aborted; what ``compute_fn`` then returns or raises is dropped.

    Raises:
        ValueError: ``max_concurrency > 1`` with ``batch_compute_fn``, or a limit below its least value.
    """

    def __init__(
        self,
        compute_fn: Callable[..., Any],
        *,
        batch_compute_fn: Callable[[list[Any]], Any] | None = None,
        max_batch_size: int = 1,
        max_batch_wait_ms: float = 0,
        request_cost_fn: Callable[[Any], float] | None = None,
        max_batch_cost: float | None = None,
        max_concurrency: int = 1,
        abort_callback: Callable[[str], None] | None = None,
        sees_abort: bool = False,
    ) -> None:
        if max_concurrency > 1 and batch_compute_fn is not None:
            raise ValueError("max_concurrency > 1 and batch_compute_fn are mutually exclusive: set one")
        for name, value, least in (
            ("max_batch_size", max_batch_size, 1),
            ("max_batch_wait_ms", max_batch_wait_ms, 0),
            ("max_concurrency", max_concurrency, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.inbox: Queue[IncomingMessage] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.work_clock = WorkClock()
        self.steps = StepMonitor()
        self._compute = compute_fn
        self._compute_batch = batch_compute_fn
        self._max_batch_size = max_batch_size if batch_compute_fn is not None else 1
        self._max_batch_wait_s = max_batch_wait_ms / 1000
        self._cost_of = request_cost_fn
        self._max_batch_cost = max_batch_cost
        self._max_concurrency = max_concurrency
        self._abort_callback = abort_callback
        self._sees_abort = sees_abort
        self._stopped = threading.Event()
        # Guards the state that `abort` shares with the working threads.
        self._lock = threading.Lock()
        # Requests in work, by thread; each thread writes its own entry only.
        self._running: dict[int, int] = {}
        self._aborted = RecentIds()
        self._awaiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = {}

    def start(self) -> None:
        """Works until ``stop``.

        Raises:
            GpuLost: A failure has left the GPU unusable for this process.
        """
        if self._max_concurrency == 1:
            self._work()
            return
        run_together([self._work] * self._max_concurrency, self.stop)

    def stop(self) -> None:
        self._stopped.set()
        for _ in range(self._max_concurrency):
            self.inbox.put(_WAKE)

    def abort(self, request_id: str) -> None:
        """Drops a request that waits, or cancels its async ``compute_fn``."""
        with self._lock:
            self._aborted.add(request_id)
            if (awaiting := self._awaiting.get(request_id)) is not None:
                loop, task = awaiting
                loop.call_soon_threadsafe(task.cancel)
        if self._abort_callback is not None:
            try:
                self._abort_callback(request_id)
            except Exception:
                logger.exception("abort_callback failed for request %s", request_id)

    def stats(self) -> dict[str, int]:
        """The numbers of requests that run, that may run at once, and that wait."""
        return {
            "num_running_reqs": sum(list(self._running.values())),
            "max_running_reqs": self._max_concurrency * self._max_batch_size,
            "num_queue_reqs": self.inbox.qsize(),
        }

    def _work(self) -> None:
        """One thread's loop: take a batch, compute it, put out the results."""
        thread = threading.get_ident()
        with asyncio.Runner() as runner:
            left_over: IncomingMessage | None = None
            while not self._stopped.is_set():
                batch, left_over = self._next_batch(left_over or self.inbox.get())
                self._running[thread] = len(batch)
                if len(batch) == 1:
                    self._run_one(batch[0], runner)
                elif batch:
                    self._run_batch(batch, runner)
                self._running[thread] = 0
                del batch  # An idle stage must not hold the memory of its last payload.

    def _next_batch(self, first: IncomingMessage) -> tuple[list[IncomingMessage], IncomingMessage | None]:
        """The next batch, and a request taken from the inbox that must wait for the batch after it."""
        batch: list[IncomingMessage] = []
        total = 0.0
        deadline = time.monotonic() + self._max_batch_wait_s
        message: IncomingMessage | None = first
        while message is not None and message is not _WAKE:
            if self._accepts(message):
                if self._max_batch_size == 1:
                    return [message], None
                try:
                    cost = float(self._cost_of(message.data)) if self._cost_of is not None else 0.0
                except Exception as exc:  # noqa: BLE001  whatever it raises is that request's error
                    self._fail(message.request_id, exc)
                else:
                    if batch and self._max_batch_cost is not None and total + cost > self._max_batch_cost:
                        return batch, message
                    batch.append(message)
                    total += cost
            if len(batch) == self._max_batch_size:
                break
            message = self._take(deadline if batch else None)
        return batch, None

    def _take(self, deadline: float | None) -> IncomingMessage | None:
        """The next message that comes before ``deadline``, or without one, that is already there."""
        try:
            wait = deadline - time.monotonic() if deadline is not None else 0.0
            return self.inbox.get(timeout=wait) if wait > 0 else self.inbox.get_nowait()
        except Empty:
            return None

    def _accepts(self, message: IncomingMessage) -> bool:
        if self._is_aborted(message.request_id):
            return False
        if message.type == "stream_chunk":
            error = TypeError(
                "SimpleScheduler takes whole payloads, but the stage received a stream chunk: remove the "
                "stage from stream_to, or give it a scheduler that handles stream_chunk messages"
            )
            self._fail(message.request_id, error)
        return message.type == "new_request"

    def _run_one(self, message: IncomingMessage, runner: asyncio.Runner) -> None:
        began = self.steps.begin()
        try:
            try:
                more = (partial(self._is_aborted, message.request_id),) if self._sees_abort else ()
                result = self._compute(message.data, *more)
                if inspect.isawaitable(result):
                    result = runner.run(self._awaited(message.request_id, result))
            finally:
                self.steps.end()
                self.work_clock.add(message.request_id, time.perf_counter() - began)
        except asyncio.CancelledError:
            self._fail(message.request_id, RuntimeError("compute_fn was cancelled"))
        except Exception as exc:  # noqa: BLE001  whatever it raises is that request's error
            self.steps.fail(exc, (message.request_id,))
            self._fail(message.request_id, exc)
        else:
            self.steps.succeed()
            self._answer(message.request_id, result)

    def _run_batch(self, batch: list[IncomingMessage], runner: asyncio.Runner) -> None:
        assert self._compute_batch is not None
        began = self.steps.begin()
        try:
            try:
                results = self._compute_batch([message.data for message in batch])
                if inspect.isawaitable(results):
                    results = runner.run(_as_coroutine(results))
            finally:
                self.steps.end()
            if len(results) != len(batch):
                raise ValueError(
                    f"batch_compute_fn returned {len(results)} results for {len(batch)} requests"
                )
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  the error of each request in it
            if is_out_of_memory(exc):
                after_failure(exc)
                for message in batch:
                    self._run_one(message, runner)
                return
            self.steps.fail(exc, [message.request_id for message in batch])
            for message in batch:
                self._fail(message.request_id, exc)
            return
        self.work_clock.add_to_all([message.request_id for message in batch], time.perf_counter() - began)
        for message, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                self.steps.fail(result, (message.request_id,))
            else:
                self.steps.succeed()
            self._answer(message.request_id, result)

    async def _awaited(self, request_id: str, result: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            if request_id in self._aborted:
                task.cancel()
            self._awaiting[request_id] = (asyncio.get_running_loop(), task)
        try:
            return await result
        finally:
            with self._lock:
                del self._awaiting[request_id]

    def _answer(self, request_id: str, result: Any) -> None:
        if isinstance(result, BaseException):
            self._fail(request_id, result)
        elif not self._is_aborted(request_id):
            self.outbox.put(OutgoingMessage(request_id, "result", result))

    def _fail(self, request_id: str, error: BaseException) -> None:
        if not self._is_aborted(request_id):
            self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _is_aborted(self, request_id: str) -> bool:
        with self._lock:
            return request_id in self._aborted


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


_WAKE = IncomingMessage("", "new_request")
