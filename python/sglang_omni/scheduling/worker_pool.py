"""Several schedulers behind the interface of one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from queue import Queue
from typing import Any

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage, Scheduler
from sglang_omni.scheduling.queues import Outbox
from sglang_omni.scheduling.threads import run_together
from sglang_omni.scheduling.work_clock import WorkClock

_REMEMBERED_SESSIONS = 10_000


class WorkerPool:
    """The ``num_workers`` schedulers of a stage: a Scheduler that spreads requests over others.

    Requests go round robin. All messages of one request go to one worker, and so do all requests of
    one session (``request.metadata["session_id"]``), as long as it is among the 10,000 last seen.

    Args:
        workers: At least one scheduler; each must emit through its ``outbox`` attribute, which the pool
            replaces by its own, as it does their ``work_clock``.
    """

    def __init__(self, workers: Sequence[Scheduler]) -> None:
        if not workers:
            raise ValueError("WorkerPool needs at least one scheduler")
        self._workers = list(workers)
        self._lock = threading.Lock()
        self._next = 0
        self._of_request: dict[str, Scheduler] = {}
        self._of_session: OrderedDict[str, Scheduler] = OrderedDict()
        self.inbox: Queue[IncomingMessage] = _Spread(self)
        self.outbox: Queue[OutgoingMessage] = _Collect(self)
        for worker in self._workers:
            worker.outbox = self.outbox
        if all(hasattr(worker, "work_clock") for worker in self._workers):
            self.work_clock = WorkClock()
            for worker in self._workers:
                worker.work_clock = self.work_clock  # type: ignore[attr-defined]

    def start(self) -> None:
        """Runs every worker until all have stopped. A worker's exception stops the others and is raised."""
        run_together([worker.start for worker in self._workers], self.stop)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def abort(self, request_id: str) -> None:
        with self._lock:
            worker = self._of_request.pop(request_id, None)
        if worker is not None:
            worker.abort(request_id)

    def stats(self) -> dict[str, float]:
        """The workers' numbers: their sum, or of what is called a maximum, the largest."""
        pooled: dict[str, float] = {}
        for worker in self._workers:
            for name, value in getattr(worker, "stats", dict)().items():
                combine = max if name.startswith("max_batch") else sum
                pooled[name] = combine((pooled.get(name, 0), value))
        return pooled

    def _worker_for(self, message: IncomingMessage) -> Scheduler:
        session = _session_of(message.data)
        with self._lock:
            worker = self._of_request.get(message.request_id)
            if worker is None and session is not None:
                worker = self._of_session.get(session)
            if worker is None:
                worker = self._workers[self._next]
                self._next = (self._next + 1) % len(self._workers)
            self._of_request[message.request_id] = worker
            if session is not None:
                self._of_session[session] = worker
                self._of_session.move_to_end(session)
                if len(self._of_session) > _REMEMBERED_SESSIONS:
                    self._of_session.popitem(last=False)
        return worker

    def _finished(self, request_id: str) -> None:
        with self._lock:
            self._of_request.pop(request_id, None)


class _Spread(Queue[IncomingMessage]):
    """An inbox whose messages go straight to a worker's."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self._pool = pool

    def put(self, item: IncomingMessage, block: bool = True, timeout: float | None = None) -> None:
        self._pool._worker_for(item).inbox.put(item, block, timeout)

    def qsize(self) -> int:
        return sum(worker.inbox.qsize() for worker in self._pool._workers)


class _Collect(Outbox[OutgoingMessage]):
    """The outbox of all workers, which also sees their requests end."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self._pool = pool

    def put(self, item: OutgoingMessage, block: bool = True, timeout: float | None = None) -> None:
        if item.type != "stream":
            self._pool._finished(item.request_id)
        super().put(item, block, timeout)


def _session_of(data: Any) -> str | None:
    if not isinstance(data, StagePayload):
        return None
    session = data.request.metadata.get("session_id")
    return session if isinstance(session, str) else None
