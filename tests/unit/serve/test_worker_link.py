"""The link between the main process and an API worker, with both ends in one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.exceptions import HTTPException
from waiting import until

from sglang_omni.proto import DuplicateRequest, RequestError, StreamMessage, Unavailable
from sglang_omni.serve.workers.link import LinkClosed, WorkerLink
from sglang_omni.serve.workers.peer import WorkerChunks


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[WorkerLink, WorkerLink, list[str]]]:
    """Both ends, and which of them have noticed the end of the other."""
    ended: list[str] = []
    ours, theirs = socket.socketpair()
    one = await WorkerLink.over(ours, lambda: ended.append("one"))
    other = await WorkerLink.over(theirs, lambda: ended.append("other"))
    try:
        yield one, other, ended
    finally:
        one.close()
        await until(lambda: len(ended) == 2)


async def test_messages_come_in_order_whatever_their_size() -> None:
    async with linked() as (one, other, _):
        got: list[bytes] = []
        other.serve({"bytes": got.append})
        sent = [b"", b"x" * 3, b"y" * 5_000_000, b"z", b"w" * 70_000] * 3
        for each in sent:
            one.post("bytes", each)
        await until(lambda: len(got) == len(sent))
        assert got == sent


@pytest.mark.parametrize(
    "failure",
    [
        HTTPException(429, "full", {"retry-after": "3"}),
        RequestError("no", param="p", code="c", status=409),
        Unavailable("not now"),
        DuplicateRequest("twice"),
        TimeoutError("late"),
        ConnectionError("gone"),
        RuntimeError("broken"),
    ],
)
async def test_a_call_raises_what_its_handler_raised(failure: Exception) -> None:
    async with linked() as (one, other, _):

        def at_once() -> None:
            raise failure

        async def later() -> None:
            await asyncio.sleep(0)
            raise failure

        other.serve({"at_once": at_once, "later": later})
        for kind in ("at_once", "later"):
            with pytest.raises(Exception, match=str(failure)) as raised:
                await one.call(kind)
            expected = ValueError if isinstance(failure, DuplicateRequest) else type(failure)
            assert isinstance(raised.value, expected)
            if isinstance(failure, RequestError):
                assert isinstance(raised.value, RequestError)
                assert raised.value.to_dict() == failure.to_dict()
            if isinstance(failure, HTTPException):
                assert isinstance(raised.value, HTTPException)
                assert raised.value.headers == failure.headers


async def test_calls_are_answered_as_they_are_done_and_cancelled_at_both_ends() -> None:
    async with linked() as (one, other, _):
        cancelled: list[int] = []
        began = asyncio.Event()

        async def wait() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        other.serve({"wait": wait, "add": lambda a, b: a + b})
        waiting = asyncio.create_task(one.call("wait"))
        await began.wait()
        assert await one.call("add", 1, 2) == 3
        waiting.cancel()
        await until(lambda: bool(cancelled))
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_the_end_of_a_process_ends_its_calls_and_the_work_for_it() -> None:
    async with linked() as (one, other, ended):
        cancelled: list[int] = []

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        got: list[int] = []
        other.serve({"wait": wait, "number": got.append})
        waiting = asyncio.create_task(one.call("wait"))
        await asyncio.sleep(0)
        one.post("number", 7)
        one.close()
        with pytest.raises(LinkClosed):
            await waiting
        await until(lambda: ended == ["one", "other"] and bool(cancelled))
        # What was sent before has arrived.
        assert got == [7]
        with pytest.raises(LinkClosed):
            await one.call("wait")


async def test_a_value_that_cannot_be_sent_fails_its_own_call() -> None:
    async with linked() as (one, other, _):
        got: list[int] = []
        other.serve({"number": got.append})
        one.post("number", 1)
        with pytest.raises(TypeError):
            one.post("number", object())
        with pytest.raises(TypeError):
            await one.call("number", object())
        one.post("number", 2)
        await until(lambda: got == [1, 2])


async def test_the_chunks_of_a_step_are_one_message() -> None:
    async with linked() as (one, other, _):
        got: list[tuple[str, str | None, list[tuple]]] = []
        other.serve(
            {"chunks": lambda *values: got.append(values), "failed": lambda *values: got.append(values)}
        )
        chunks = WorkerChunks(one)
        for number in range(3):
            assert chunks.add(number, StreamMessage("r", "text", {"text": str(number)}, modality="text"))
        assert chunks.add(0, StreamMessage("r", "talker", {"audio": b"1"}))
        await until(lambda: len(got) == 2)
        assert got[0] == ("text", None, [(n, {"text": str(n)}, "text", None) for n in range(3)])
        assert got[1] == ("talker", None, [(0, {"audio": b"1"}, None, None)])
        # One that cannot be encoded fails its own request.
        got.clear()
        for number, chunk in enumerate(("a", object(), "b")):
            chunks.add(number, StreamMessage("r", "text", chunk))
        await until(lambda: len(got) == 3)
        assert [each[0] for each in got] == ["text", 1, "text"]
        assert "a chunk cannot be sent to its caller" in str(got[1])
