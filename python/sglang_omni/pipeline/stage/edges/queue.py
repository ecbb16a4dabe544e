"""The queue before an edge: runs its jobs in order, apart from those of other edges."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from sglang_omni.versions.asyncio import Begun, begin

logger = logging.getLogger(__name__)

# Jobs done in a row before the loop's other work gets its turn.
_BATCH = 64
_LOST = "%s: a message was lost (request %s)"

Job = Callable[..., Coroutine[Any, Any, None]]
# Does for several requests, in one call, what each has put into the queue for it.
JointJob = Callable[[Sequence[Any]], Coroutine[Any, Any, None]]


class _Share(NamedTuple):
    """One request's share of a joint job."""

    job: JointJob
    item: Any


class EdgeQueue:
    """Runs the jobs put into it: those of one request in order, and requests in turn.

    A stage has a queue for each source and each target. An edge that waits (for a credit, for a slow peer)
    holds up no other, and a request with much to send delays the others by one message at a time.

    A job may run inside ``put``. That saves most jobs a task and an iteration of the loop, and has a price:
    when ``put`` returns, the job may have failed, and its request may have ended.

        NEW ----- put: make the task, queue the job ------------------> BUSY
        IDLE ---- put, outside of any task: run the job in the call --> IDLE, if the job ends there
              '-- the job waits for something: the task awaits it ----> BUSY
        IDLE ---- put, inside a task: queue the job ------------------> BUSY
        BUSY ---- put: queue the job ---------------------------------> BUSY
              '-- the last job ends ----------------------------------> IDLE

    Args:
        name: For the log.
        on_done: Called after each job that did not end inside ``put``.
    """

    def __init__(self, name: str, on_done: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.on_done = on_done
        # By request, in the order of their turns. No deque is empty.
        self._jobs: OrderedDict[str, deque[tuple[Job, tuple[Any, ...]] | _Share]] = OrderedDict()
        self._queued = 0
        # The job that began inside `put` and goes on in the task, with its request.
        self._begun: tuple[str, Begun] | None = None
        # Pending while the task is idle.
        self._wake: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of jobs that have not begun."""
        return self._queued

    @property
    def is_idle(self) -> bool:
        """True if every job is done."""
        return self._idle.is_set()

    def put(self, request_id: str, job: Job, *args: Any) -> None:
        """Adds ``job(*args)``, which must report its own failure. May run it; see the class."""
        if self._may_begin():
            self._begin(request_id, job(*args))
            return
        self._add(request_id, (job, args))
        self._go_on()

    def put_together(self, job: JointJob, items: Sequence[Any]) -> None:
        """Adds items of several requests, of which ``job([item, ...])`` handles many in one call.

        Each item keeps its place among the jobs of its request. Otherwise as ``put``.
        """
        if self._may_begin():
            self._begin(items[0].request_id, job(items))
            return
        for item in items:
            self._add(item.request_id, _Share(job, item))
        self._go_on()

    async def drain(self) -> None:
        """Returns once every job put so far is done."""
        await self._idle.wait()

    async def close(self) -> None:
        """Drops queued jobs and cancels the running one."""
        self._jobs.clear()
        self._queued = 0
        if self._begun is not None:
            self._begun[1].coroutine.close()
            self._begun = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._idle.set()

    def _add(self, request_id: str, job: tuple[Job, tuple[Any, ...]] | _Share) -> None:
        jobs = self._jobs.get(request_id)
        if jobs is None:
            jobs = self._jobs[request_id] = deque()
        jobs.append(job)
        self._queued += 1

    def _may_begin(self) -> bool:
        """True if a job may run inside ``put``. Makes the task if there is none yet."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
            return False
        return self._is_waiting() and asyncio.current_task() is None

    def _is_waiting(self) -> bool:
        return self._wake is not None and not self._wake.done()

    def _begin(self, request_id: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a job up to its first wait, as the queue's task would."""
        assert self._task is not None
        try:
            # Another edge's job may wait for the same future, as those of a fan-out do.
            begun = begin(coroutine, self._task)
        except Exception:
            logger.exception(_LOST, self.name, request_id)
            return
        if begun is not None:
            self._begun = request_id, begun
            self._go_on()

    def _go_on(self) -> None:
        self._idle.clear()
        if self._is_waiting():
            assert self._wake is not None
            self._wake.set_result(None)

    def _next(self) -> tuple[str, Awaitable[None]] | None:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun
        if not self._jobs:
            return None
        request_id, job = self._take_turn()
        if not isinstance(job, _Share):
            run, args = job
            return request_id, run(*args)
        items = [job.item]
        while self._jobs and len(items) < _BATCH:
            share = next(iter(self._jobs.values()))[0]
            if not isinstance(share, _Share) or share.job != job.job:
                break
            self._take_turn()
            items.append(share.item)
        return request_id, job.job(items)

    def _take_turn(self) -> tuple[str, tuple[Job, tuple[Any, ...]] | _Share]:
        """Takes out the first job of the request whose turn it is, whose next turn comes after all others."""
        request_id, jobs = self._jobs.popitem(last=False)
        job = jobs.popleft()
        self._queued -= 1
        if jobs:
            self._jobs[request_id] = jobs
        return request_id, job

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        done = 0
        while True:
            while (job := self._next()) is not None:
                request_id, work = job
                try:
                    await work
                except Exception:
                    logger.exception(_LOST, self.name, request_id)
                # An idle queue must not keep a payload's memory.
                del job, work
                self.on_done()
                done += 1
                if done % _BATCH == 0:
                    await asyncio.sleep(0)
            self._idle.set()
            self._wake = loop.create_future()
            try:
                await self._wake
            except asyncio.CancelledError as exc:
                if self._begun is None:
                    raise
                # The timeout of a job that began inside `put` has expired: the cancellation is that job's.
                self._begun[1].interrupt = exc
            self._wake = None
