"""The queue before an edge: when jobs run, in what order, and what their waits and failures do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from waiting import rounds

from sglang_omni.pipeline.stage.edges.edge import StreamChunk
from sglang_omni.pipeline.stage.edges.queue import EdgeQueue

WAIT_S = 60


@pytest.fixture
async def queue() -> AsyncIterator[EdgeQueue]:
    queue = EdgeQueue("edge")
    yield queue
    await queue.close()


async def from_callback(work: object, *args: object) -> None:
    """Calls ``work`` as the loop does: outside of any task."""
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            work(*args)  # type: ignore[operator]
        finally:
            done.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    await done


async def warm(queue: EdgeQueue) -> None:
    """Has the queue's task wait for work."""

    async def nothing() -> None: ...

    queue.put("warm", nothing)
    await queue.drain()
    await asyncio.sleep(0)


async def test_a_job_that_finds_the_queue_idle_ends_where_it_was_put(queue: EdgeQueue) -> None:
    await warm(queue)
    seen: list[object] = []

    async def job(value: int) -> None:
        seen.append(value)
        seen.append(asyncio.current_task() is not None)

    def put() -> None:
        queue.put("r", job, 1)
        assert seen == [1, True]

    await from_callback(put)
    assert seen == [1, True]


async def test_what_waits_goes_on_in_the_queue_and_the_next_queue_behind_it(queue: EdgeQueue) -> None:
    await warm(queue)
    gate = asyncio.Event()
    seen: list[str] = []

    async def slow() -> None:
        seen.append("begun")
        await gate.wait()
        seen.append("ended")

    async def quick() -> None:
        seen.append("quick")

    def put() -> None:
        queue.put("r", slow)
        queue.put("r", quick)

    await from_callback(put)
    await rounds()
    assert seen == ["begun"]
    assert len(queue) == 1
    gate.set()
    await asyncio.wait_for(queue.drain(), WAIT_S)
    assert seen == ["begun", "ended", "quick"]


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.001])
async def test_a_deadline_ends_the_job_that_set_it_and_nothing_else(queue: EdgeQueue, seconds: float) -> None:
    await warm(queue)
    seen: list[str] = []

    async def hurried() -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("too late")

    async def quick() -> None:
        seen.append("quick")

    await from_callback(queue.put, "r", hurried)
    queue.put("r", quick)
    await asyncio.wait_for(queue.drain(), WAIT_S)
    assert seen == ["too late", "quick"]


async def test_jobs_that_begin_together_may_wait_for_the_same(queue: EdgeQueue) -> None:
    other = EdgeQueue("other edge")
    await warm(queue)
    await warm(other)
    packed = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def job(name: str) -> None:
        seen.append(f"{name} begun")
        await packed
        seen.append(f"{name} ended")

    def put() -> None:
        queue.put("r", job, "one")
        other.put("r", job, "two")
        assert seen == ["one begun", "two begun"]

    await from_callback(put)
    packed.set_result(None)
    for each in (queue, other):
        await asyncio.wait_for(each.drain(), WAIT_S)
    assert sorted(seen[2:]) == ["one ended", "two ended"]
    await other.close()


async def test_requests_take_turns_and_keep_their_own_order(queue: EdgeQueue) -> None:
    seen: list[str] = []

    async def job(name: str) -> None:
        seen.append(name)

    for number in range(4):
        queue.put("long", job, f"long {number}")
    for number in range(2):
        queue.put("short", job, f"short {number}")
    await asyncio.wait_for(queue.drain(), WAIT_S)
    assert seen == ["long 0", "short 0", "long 1", "short 1", "long 2", "long 3"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_failed_job_is_logged_and_the_queue_goes_on(
    queue: EdgeQueue, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await warm(queue)
    seen: list[str] = []

    async def broken() -> None:
        if waits:
            await asyncio.sleep(0)
        raise OSError("no way out")

    async def quick() -> None:
        seen.append("quick")

    await from_callback(queue.put, "r", broken)
    await from_callback(queue.put, "r", quick)
    await asyncio.wait_for(queue.drain(), WAIT_S)
    assert seen == ["quick"]
    assert "edge: a message was lost (request r)" in caplog.text
    assert "no way out" in caplog.text


async def test_closing_a_queue_ends_what_has_begun_and_drops_the_rest(queue: EdgeQueue) -> None:
    await warm(queue)
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async def quick() -> None:
        seen.append("quick")

    def put() -> None:
        queue.put("r", endless)
        queue.put("r", quick)

    await from_callback(put)
    await queue.close()
    assert seen == ["ended"]
    assert len(queue) == 0


async def test_items_of_several_requests_are_handled_together_and_in_turn(queue: EdgeQueue) -> None:
    """While one call waits, what comes of each request lines up; the next call has one of each at a time."""
    gate = asyncio.Event()
    calls: list[list[str]] = []

    def items(*names: str) -> list[StreamChunk]:
        return [StreamChunk(name[0], "source", 0, name) for name in names]

    async def handle(chunks: Sequence[StreamChunk]) -> None:
        calls.append([chunk.data for chunk in chunks])
        await gate.wait()

    async def end(item: str) -> None:
        calls.append([item])

    queue.put_together(handle, items("a0"))
    await asyncio.sleep(0)
    queue.put_together(handle, items("a1", "a2", "b1"))
    queue.put("b", end, "the end of b")
    queue.put_together(handle, items("a3", "b: too late"))
    assert len(queue) == 6
    gate.set()
    await queue.drain()
    # b's end takes its turn, after which b's last item is no longer behind it.
    assert calls == [["a0"], ["a1", "b1", "a2"], ["the end of b"], ["a3", "b: too late"]]
