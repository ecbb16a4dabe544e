"""Requests whose chunks the coordinator hands to their callers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import pytest
from coordinator_harness import Pipeline, pipelines, soon
from waiting import until

from sglang_omni.pipeline.coordinator import coordinator as module
from sglang_omni.proto import (
    CompleteMessage,
    MoreInputMessage,
    StreamBatchMessage,
    StreamMessage,
    Unavailable,
)

make = pytest.fixture(pipelines)


async def collect(stream: AsyncIterator[Any], into: list[Any]) -> None:
    async for message in stream:
        into.append(message)  # noqa: PERF401  what came before a failure is kept


def read(pipeline: Pipeline) -> tuple[list[Any], asyncio.Task[None]]:
    """A request that streams: what has come so far, and the task that ends with it."""
    got: list[Any] = []
    return got, asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))


async def test_chunks_come_in_order_and_the_merged_result_last(make: Any) -> None:
    pipeline = await make(terminal_stages=["text", "audio"])
    got, reading = read(pipeline)
    await pipeline.submitted()
    for text in "abc":
        await pipeline.chunk("text", "r", text)
    await pipeline.complete("text", "r", 1)
    await pipeline.chunk("audio", "r", "d")
    await pipeline.complete("audio", "r", 2)
    await soon(reading)
    assert [m.chunk["text"] for m in got if m.from_stage == "text"] == ["a", "b", "c"]
    assert [m.type for m in got] == ["stream"] * 4 + ["complete"]
    assert got[-1] == CompleteMessage("r", "coordinator", True, result={"text": 1, "audio": 2})


async def test_a_stream_ends_with_the_only_terminals_result(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    got, reading = read(pipeline)
    await pipeline.submitted()
    await pipeline.complete("text", "r", "all")
    await soon(reading)
    assert got == [CompleteMessage("r", "text", True, result="all")]


async def test_chunks_of_other_stages_are_awaited_before_the_end(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    got, reading = read(pipeline)
    await pipeline.submitted()
    await pipeline.chunk("first", "r", "a")
    await until(lambda: len(got) == 1)
    await pipeline.complete("text", "r", "all")  # On a connection of its own, ahead of what follows.
    await pipeline.settle()
    await pipeline.chunk("first", "r", "b")
    await pipeline.progress("first", spans=[("r", 0.1, 0.0, 0.0)])
    await soon(reading)
    assert [getattr(m, "chunk", None) for m in got] == [{"text": "a"}, {"text": "b"}, None]


async def test_a_stage_that_never_says_it_is_done_delays_the_end_but_does_not_prevent_it(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LATE_CHUNKS_S", 0.05)
    pipeline = await make(terminal_stages=["text"])
    got, reading = read(pipeline)
    await pipeline.submitted()
    await pipeline.chunk("first", "r", "a")
    await until(lambda: len(got) == 1)
    await pipeline.complete("text", "r", "all")
    await soon(reading)
    assert got[-1].result == "all"


async def test_a_failing_stream_gives_its_chunks_first(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    got, reading = read(pipeline)
    await pipeline.submitted()
    await pipeline.chunk("text", "r", "a")
    await pipeline.stages["text"].send_complete(CompleteMessage("r", "text", False, error="boom"))
    with pytest.raises(RuntimeError, match="boom"):
        await soon(reading)
    assert [m.chunk for m in got] == [{"text": "a"}]


async def test_a_failure_whose_caller_has_left_is_not_logged_as_unretrieved(make: Any) -> None:
    lost: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: lost.append(context))
    pipeline = await make(terminal_stages=["text"])
    stream = pipeline.coordinator.stream("r", None)
    first = asyncio.create_task(anext(stream))
    await pipeline.submitted()
    await pipeline.chunk("text", "r", "a")
    await soon(first)
    await pipeline.stages["text"].send_complete(CompleteMessage("r", "text", False, error="boom"))
    await until(lambda: pipeline.coordinator.request_state("r") is None)
    await stream.aclose()
    gc.collect()
    assert lost == []


async def test_an_aborted_stream_is_cancelled(make: Any) -> None:
    pipeline = await make()
    _, reading = read(pipeline)
    await pipeline.submitted()
    assert await pipeline.coordinator.abort("r")
    with pytest.raises(asyncio.CancelledError):
        await soon(reading)


async def test_a_reused_id_streams_under_the_callers_id(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    for _ in range(2):
        got, reading = read(pipeline)
        wire_id = (await pipeline.submitted()).request_id
        await pipeline.chunk("text", wire_id, "a")
        await pipeline.complete("text", wire_id, 1)
        await soon(reading)
        assert [m.request_id for m in got] == ["r", "r"]


async def test_a_stream_that_is_not_read_fails_its_request(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_STREAM_BACKLOG", 10)
    pipeline = await make(terminal_stages=["text"])
    stream = pipeline.coordinator.stream("r", None)
    first = asyncio.create_task(anext(stream))
    await pipeline.submitted()
    for index in range(30):
        await pipeline.chunk("text", "r", str(index))
    await soon(first)
    assert (await soon(pipeline.stages["text"].recv_abort())).request_id == "r"
    with pytest.raises(RuntimeError, match="the reader of the stream is too far behind"):
        await soon(collect(stream, []))


async def test_a_message_with_the_chunks_of_a_step_reaches_every_caller(make: Any) -> None:
    """Each gets its own, in order, and a caller of a request that has ended, or never was, gets none."""
    pipeline = await make(terminal_stages=["text"])
    got: dict[str, list[Any]] = {name: [] for name in "ab"}
    reading = []
    for name in got:
        reading.append(asyncio.create_task(collect(pipeline.coordinator.stream(name, None), got[name])))
        await pipeline.submitted()
    chunks = [("a", 1, None, 0), ("gone", 9, None, 0), ("b", 2, "text", 0), ("a", 3, "audio", 1)]
    await pipeline.stages["text"].send_stream_batch(StreamBatchMessage("text", chunks))
    for name in got:
        await pipeline.complete("text", name, "all")
    await soon(asyncio.gather(*reading))
    chunk = partial(StreamMessage, stage_name="text")
    assert got["a"][:-1] == [
        chunk("a", "text", 1, chunk_id=0),
        chunk("a", "text", 3, modality="audio", chunk_id=1),
    ]
    assert got["b"][:-1] == [chunk("b", "text", 2, modality="text", chunk_id=0)]


async def test_a_caller_that_is_behind_gets_all_that_has_come_at_once(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    batches = pipeline.coordinator.stream_batches("r", None)
    first = asyncio.ensure_future(anext(batches))
    await pipeline.submitted()
    await pipeline.chunk("text", "r", "a")
    assert [message.chunk["text"] for message in await soon(first)] == ["a"]
    for text in "bcd":
        await pipeline.chunk("text", "r", text)
    await pipeline.complete("text", "r", "all")
    await pipeline.settle()
    assert [message.chunk["text"] for message in await soon(anext(batches))] == ["b", "c", "d"]
    assert (await soon(anext(batches))).result == "all"
    await batches.aclose()


async def test_what_a_caller_adds_goes_to_the_stage_of_input_which_holds_the_request(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"], input_stage="audio")

    async def more() -> AsyncGenerator[bytes, None]:
        yield b"a"
        yield b"b"

    got: list[Any] = []
    reading = asyncio.create_task(collect(pipeline.coordinator.stream_batches("r", None, more()), got))
    await pipeline.submitted()
    messages = [await soon(pipeline.stages["audio"].recv()) for _ in range(3)]
    assert messages == [MoreInputMessage("r", b"a", 0), MoreInputMessage("r", b"b", 1), MoreInputMessage("r")]
    # Before any stage has reported anything.
    assert pipeline.coordinator.held_at("r") == ["first", "audio"]
    pipeline.coordinator.stage_down(["audio"], "it died")
    with pytest.raises(Unavailable, match="it died"):
        await soon(reading)
