"""Several schedulers of one stage behind the interface of one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from queue import Queue
from typing import Any, TypeVar

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import (
    HasCache,
    HasStats,
    HasWorkClock,
    IncomingMessage,
    OutgoingMessage,
    Scheduler,
)
from sglang_omni.scheduling.queues import Outbox
from sglang_omni.scheduling.threads import run_together
from sglang_omni.scheduling.work_clock import WorkClock

# The most finished requests, and the most sessions, whose workers are remembered.
_REMEMBERED = 10_000

_Key = TypeVar("_Key", bound=Hashable)


class WorkerPool:
    """The ``num_workers`` schedulers of a stage: a Scheduler that spreads requests over others.

    Requests go round robin, except that

    - all messages of one request go to one worker, also those of a request that returns to the stage in a
      pipeline that loops, as long as it is among the 10,000 last finished;
    - all requests of one session (``request.metadata["session_id"]``) go to one worker, as long as the
      session is among the 10,000 last seen.

    Args:
        workers: At least one. The pool replaces each one's ``outbox`` and ``work_clock`` by its own.

    Raises:
        ValueError: There is no worker.
    """

    def __init__(self, workers: Sequence[Scheduler]) -> None:
        if not workers:
            raise ValueError("WorkerPool needs at least one scheduler")
        self._workers = list(workers)
        self._lock = threading.Lock()
        self._next = 0
        self._of_request: dict[str, Scheduler] = {}
        self._of_finished: _Recent[str] = _Recent()
        # By hash: the caller chooses a session's name, of any length.
        self._of_session: _Recent[int] = _Recent()
        self.inbox: Queue[IncomingMessage] = _Spread(self)
        self.outbox: Queue[OutgoingMessage] = _Collect(self)
        for worker in self._workers:
            worker.outbox = self.outbox
        clocked = [worker for worker in self._workers if isinstance(worker, HasWorkClock)]
        if len(clocked) == len(self._workers):
            self.work_clock = WorkClock()
            for worker in clocked:
                worker.work_clock = self.work_clock

    def start(self) -> None:
        """Runs every worker until all have stopped. A worker's exception stops the others and is raised."""
        run_together([worker.start for worker in self._workers], self.stop)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def abort(self, request_id: str) -> None:
        with self._lock:
            finished = self._of_finished.pop(request_id, None)
            worker = self._of_request.pop(request_id, finished)
        if worker is not None:
            worker.abort(request_id)

    def flush_cache(self) -> None:
        """Empties the cache of every worker that has one."""
        for worker in self._workers:
            if isinstance(worker, HasCache):
                worker.flush_cache()

    def stats(self) -> dict[str, float]:
        """The workers' stats, summed; ``max_batch*`` values are maxima."""
        pooled: dict[str, float] = {}
        for worker in self._workers:
            for name, value in worker.stats().items() if isinstance(worker, HasStats) else ():
                combine = max if name.startswith("max_batch") else sum
                pooled[name] = combine((pooled.get(name, 0), value))
        return pooled

    def _worker_for(self, message: IncomingMessage) -> Scheduler:
        request_id, session = message.request_id, _session_of(message.data)
        with self._lock:
            worker = self._of_request.get(request_id) or self._of_finished.get(request_id)
            if worker is None and session is not None:
                worker = self._of_session.get(session)
            if worker is None:
                worker = self._workers[self._next]
                self._next = (self._next + 1) % len(self._workers)
            # A chunk after the result must not make the request active again: no second result would end it.
            if message.type == "new_request" or request_id not in self._of_finished:
                self._of_request[request_id] = worker
            if session is not None:
                self._of_session[session] = worker
        return worker

    def _finished(self, request_id: str) -> None:
        with self._lock:
            worker = self._of_request.pop(request_id, None)
            if worker is not None:
                self._of_finished[request_id] = worker


class _Recent(OrderedDict[_Key, Scheduler]):
    """The workers of the last keys set."""

    def __setitem__(self, key: _Key, worker: Scheduler) -> None:
        super().__setitem__(key, worker)
        self.move_to_end(key)
        if len(self) > _REMEMBERED:
            self.popitem(last=False)


class _Spread(Queue[IncomingMessage]):
    """An inbox that puts each message straight into a worker's."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self._pool = pool

    def put(self, item: IncomingMessage, block: bool = True, timeout: float | None = None) -> None:
        self._pool._worker_for(item).inbox.put(item, block, timeout)

    def qsize(self) -> int:
        return sum(worker.inbox.qsize() for worker in self._pool._workers)


class _Collect(Outbox[OutgoingMessage]):
    """The outbox of all workers, which also notices the ends of their requests."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self._pool = pool

    def put(self, item: OutgoingMessage, block: bool = True, timeout: float | None = None) -> None:
        if item.type != "stream":
            self._pool._finished(item.request_id)
        super().put(item, block, timeout)


def _session_of(data: Any) -> int | None:
    if not isinstance(data, StagePayload):
        return None
    session = data.request.metadata.get("session_id")
    return hash(session) if isinstance(session, str) else None
