"""When requests are sent: at a fixed rate, or so many at once; and for how long."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """
    Attributes:
        rate: Requests a second, as a Poisson process; infinite for "as soon as there is room".
        concurrency: The most that run at once; None for any number.
        count: The most requests; None if ``duration`` alone ends the run.
        duration: Seconds after which no request is sent any more; None for no end.
        seed: Of the Poisson process.
    """

    rate: float
    concurrency: int | None
    count: int | None
    duration: float | None
    seed: int

    @property
    def is_open(self) -> bool:
        """True if requests come at their own times, however slow the server is."""
        return math.isfinite(self.rate)

    def offsets(self) -> Iterator[float]:
        """When each request is due, in seconds from the start of the run."""
        chance = random.Random(self.seed)
        due = 0.0
        while True:
            yield due
            if self.is_open:
                due += chance.expovariate(self.rate)


async def run_load(
    load: Load, ask: Callable[[int, float, float], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Sends the requests and waits for their answers.

    At a fixed rate a request's clock starts when it was due, even if it could be sent only later: the time
    that it waited for a slow server counts. Without a rate there is no such time: its clock starts when it is
    sent.

    Args:
        load: When and how many.
        ask: Sends one request. Gets its number, when its clock started (``time.perf_counter``), and how many
            seconds later it was sent. It raises nothing.
        stop: Once it is set, no request is sent any more, and those under way are cancelled.
    """
    room = asyncio.Semaphore(load.concurrency) if load.concurrency else None
    running: set[asyncio.Task[None]] = set()
    start = time.perf_counter()
    end = start + (math.inf if load.duration is None else load.duration)

    async def one(index: int, began: float, late: float) -> None:
        try:
            await ask(index, began, late)
        finally:
            if room is not None:
                room.release()

    async def send_all() -> None:
        for index, offset in enumerate(load.offsets()):
            due = start + offset
            if index == load.count or due >= end:
                return
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if room is not None:
                await room.acquire()
            now = time.perf_counter()
            if now >= end:
                return
            began = due if load.is_open else now
            task = asyncio.create_task(one(index, began, now - began))
            running.add(task)
            task.add_done_callback(running.discard)

    sending = asyncio.create_task(send_all())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        while running and not stop.is_set():
            await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        tasks = {sending, stopping, *running}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
