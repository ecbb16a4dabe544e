"""Stages of coroutines: many requests at once, aborts, streams that come early, and failures of one alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.async_scheduler import AsyncRequest, AsyncScheduler
from sglang_omni.scheduling.event_loop import EventLoopThread
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage

DEADLINE = 30


@contextmanager
def running(work: Callable[[AsyncRequest], Any], **options: Any) -> Iterator[AsyncScheduler]:
    scheduler = AsyncScheduler(work, EventLoopThread("test"), **options)
    thread = threading.Thread(target=scheduler.start)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def submit(scheduler: AsyncScheduler, name: str, data: Any = None) -> None:
    scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(None), data)))


def next_of(scheduler: AsyncScheduler) -> OutgoingMessage:
    return scheduler.outbox.get(timeout=DEADLINE)


def test_requests_wait_side_by_side() -> None:
    """None ends before all have begun."""
    begun: list[str] = []
    all_begun = asyncio.Event()

    async def work(request: AsyncRequest) -> str:
        begun.append(request.payload.request_id)
        if len(begun) == 5:
            all_begun.set()
        await all_begun.wait()
        return f"{request.payload.request_id} done"

    with running(work) as scheduler:
        for index in range(5):
            submit(scheduler, str(index))
        results = [next_of(scheduler) for _ in range(5)]
    assert sorted(message.data.data for message in results) == [f"{index} done" for index in range(5)]


def test_no_more_than_allowed_at_once_and_the_oldest_first() -> None:
    order: list[str] = []

    async def work(request: AsyncRequest) -> None:
        order.append(request.payload.request_id)
        await asyncio.sleep(0)
        order.append("-")

    with running(work, max_concurrency=1) as scheduler:
        for name in "abc":
            submit(scheduler, name)
        for _ in "abc":
            next_of(scheduler)
    assert order == ["a", "-", "b", "-", "c", "-"]


def test_a_failure_is_its_requests_alone() -> None:
    async def work(request: AsyncRequest) -> str:
        if request.payload.data:
            raise ValueError("no")
        return "yes"

    with running(work) as scheduler:
        submit(scheduler, "bad", True)
        bad = next_of(scheduler)
        submit(scheduler, "good")
        good = next_of(scheduler)
    assert (bad.type, str(bad.data)) == ("error", "no")
    assert good.data.data == "yes"


def test_a_stream_that_begins_before_its_request_is_read_in_order() -> None:
    async def work(request: AsyncRequest) -> list[int]:
        items = []
        async for item in request.stream():
            request.put(item)
            items.append(item)
        return items

    with running(work) as scheduler:
        for number in (1, 2):
            scheduler.inbox.put(IncomingMessage("r", "stream_chunk", SimpleNamespace(data=number)))
        submit(scheduler, "r")
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", SimpleNamespace(data=3)))
        scheduler.inbox.put(IncomingMessage("r", "stream_done"))
        reported = [next_of(scheduler) for _ in range(4)]
    assert [message.data for message in reported[:3]] == [1, 2, 3]
    assert reported[3].data.data == [1, 2, 3]


def test_an_abort_cancels_and_nothing_more_is_reported() -> None:
    cancelled = threading.Event()

    async def work(request: AsyncRequest) -> str:
        if request.payload.request_id == "long":
            request.put("begun")
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        return "short"

    with running(work) as scheduler:
        submit(scheduler, "long")
        assert next_of(scheduler).data == "begun"
        scheduler.abort("long")
        assert cancelled.wait(DEADLINE)
        scheduler.inbox.put(IncomingMessage("long", "stream_chunk", SimpleNamespace(data=1)))
        submit(scheduler, "next")
        assert next_of(scheduler).request_id == "next"
        assert scheduler.stats()["num_running_reqs"] == 0
        assert scheduler.outbox.empty()


def test_what_it_holds_is_closed_in_the_loop_as_it_stops() -> None:
    closed = []

    async def close() -> None:
        closed.append(asyncio.get_running_loop())

    async def work(request: AsyncRequest) -> None:
        return None

    loop_thread = EventLoopThread("test")
    scheduler = AsyncScheduler(work, loop_thread, closing=close)
    scheduler.stop()
    scheduler.start()
    assert closed == [loop_thread.loop]
    assert loop_thread.loop.is_closed()
