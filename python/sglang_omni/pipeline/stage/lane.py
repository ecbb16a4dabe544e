"""One edge's work, in order and apart from the other edges."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger(__name__)

# Jobs done in a row before the loop's other work gets its turn.
_BATCH = 64

Job = Callable[..., Awaitable[None]]


class Lane:
    """Runs the jobs put into it one after the other, in a task of its own that lives as long as the lane.

    A stage has a lane for each source and each target: messages of one edge keep their order, and an
    edge that waits (for a credit, for a slow peer) holds up no other.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: deque[tuple[Job, tuple[Any, ...]]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: Job, *args: Any) -> None:
        """Adds ``job(*args)``, which is expected to report its own failure."""
        self._jobs.append((job, args))
        if self._task is None:
            self._idle.clear()
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        elif self._wake is not None and not self._wake.done():
            self._idle.clear()
            self._wake.set_result(None)

    async def drain(self) -> None:
        """Returns once every job put so far is done."""
        await self._idle.wait()

    async def close(self) -> None:
        """Drops what is queued and cancels what is running."""
        self._jobs.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._idle.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        done = 0
        while True:
            while self._jobs:
                job, args = self._jobs.popleft()
                try:
                    await job(*args)
                except Exception:
                    logger.exception("%s: a message was lost", self.name)
                # A payload's memory is given back as soon as nobody refers to it, idle lanes included.
                del job, args
                done += 1
                if done % _BATCH == 0:
                    await asyncio.sleep(0)
            self._idle.set()
            self._wake = loop.create_future()
            await self._wake
            self._wake = None
