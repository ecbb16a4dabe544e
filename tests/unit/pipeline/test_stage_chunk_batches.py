"""Chunks for another stage leave as one message where they travel inside of it, and are read one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from stage_harness import RecordedControlPlane, harness
from waiting import rounds, until

from sglang_omni.compat.control_plane import as_stage_link
from sglang_omni.pipeline.stage.edges.edge import StreamChunk
from sglang_omni.pipeline.stage.edges.relayed import RelayedEdge, read_item
from sglang_omni.proto import DataReadyBatchMessage, DataReadyMessage
from sglang_omni.relay.shm.relay import ShmRelay


class Edge:
    """A relayed edge to ``t`` whose relay has no credit until ``gate`` is set."""

    def __init__(self, endpoint: str = "ipc:///t") -> None:
        self.sent: list[Any] = []
        self.failed: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.relay = ShmRelay("s")
        self._put = self.relay.put_payload
        self.relay.put_payload = self._wait  # type: ignore[method-assign]
        self._endpoint = endpoint
        self.edge = RelayedEdge("s", "t", lambda target: self.relay, self, self._endpoint_of, lambda *_: None)

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        self.sent.append(message)

    async def send(self, *chunks: StreamChunk) -> None:
        await self.edge.send_chunks(iter(chunks), lambda chunk, exc: self._fail(chunk, exc))

    def _fail(self, chunk: StreamChunk, exc: Exception) -> None:
        self.failed.append((chunk.request_id, str(exc)))

    async def _endpoint_of(self, target: str) -> str:
        if not self._endpoint:
            raise RuntimeError(f"no endpoint of {target}")
        return self._endpoint

    async def _wait(self, *args: Any) -> Any:
        await self.gate.wait()
        return await self._put(*args)


def chunk(request_id: str, number: int = 0, data: Any = "x", **fields: Any) -> StreamChunk:
    return StreamChunk(request_id, "s", number, data, **fields)


async def test_small_chunks_of_several_requests_are_one_message() -> None:
    one = Edge()
    tensor = torch.arange(5)
    chunks = [
        chunk("a", 0, tensor, metadata={"step": 1}),
        chunk("b", 3, {"text": "hi"}, replicas={"t": 1}),
        chunk("a", 1, b"bytes"),
    ]
    await one.send(*chunks)
    (batch,) = one.sent
    assert isinstance(batch, DataReadyBatchMessage)
    read = [await read_item(one.relay, message) for message in batch.messages()]
    assert torch.equal(read[0].data, tensor)
    read[0].data = chunks[0].data
    assert read == chunks
    one.relay.close()


async def test_one_chunk_is_a_message_of_its_own() -> None:
    one = Edge()
    await one.send(chunk("a"))
    assert [type(message) for message in one.sent] == [DataReadyMessage]
    one.relay.close()


@pytest.mark.parametrize("large", ["data", "metadata"])
async def test_no_chunk_waits_for_the_credit_of_one_behind_it(large: str) -> None:
    """Its reader may give back the credit only after it has read those before."""
    one = Edge()
    big = torch.zeros(1 << 20, dtype=torch.uint8)
    waiting = chunk("big", 0, big) if large == "data" else chunk("big", 0, "x", metadata={"part": big})
    sending = asyncio.create_task(one.send(chunk("a"), chunk("b"), waiting, chunk("a", 1), chunk("b", 1)))
    await until(lambda: bool(one.sent))
    await rounds()
    assert [name for name, *_ in one.sent[0].chunks] == ["a", "b"]
    assert len(one.sent) == 1
    one.gate.set()
    await sending
    assert [type(message).__name__ for message in one.sent] == [
        "DataReadyBatchMessage",
        "DataReadyMessage",
        "DataReadyBatchMessage",
    ]
    assert (one.sent[1].request_id, one.failed) == ("big", [])
    one.relay.close()


async def test_what_cannot_be_encoded_fails_alone() -> None:
    one = Edge()
    await one.send(
        chunk("a"), chunk("bad", 0, object()), chunk("worse", metadata={"x": object()}), chunk("b")
    )
    assert [name for name, *_ in one.sent[0].chunks] == ["a", "b"]
    assert [name for name, _ in one.failed] == ["bad", "worse"]
    assert all("object" in text for _, text in one.failed)
    one.relay.close()


async def test_each_request_fails_if_their_message_cannot_leave() -> None:
    one = Edge(endpoint="")
    await one.send(chunk("a"), chunk("b"))
    assert one.failed == [("a", "no endpoint of t"), ("b", "no endpoint of t")]
    one.relay.close()


def batch_of(*names: str, source: str = "up") -> DataReadyBatchMessage:
    wire = {"relay_info": {"inline": b""}, "chunk_metadata": None, "chunk_metadata_tensors": {}}
    return DataReadyBatchMessage(source, "s", [(name, wire, 0, None) for name in names])


async def test_a_control_plane_that_knows_no_batches_gets_each_chunk() -> None:
    minimal = RecordedControlPlane()
    await as_stage_link(minimal).send_to_stage("t", "test://t", batch_of("a", "b"))
    assert [(target, message.request_id) for target, _, message in minimal.sent] == [("t", "a"), ("t", "b")]
    assert all(type(message) is DataReadyMessage for _, _, message in minimal.sent)


async def test_received_chunks_reach_the_scheduler_in_order_and_a_bad_one_fails_alone() -> None:
    sender = Edge()
    await sender.send(*(chunk(name, number, [name, number]) for number in range(3) for name in "ab"))
    (batch,) = sender.sent
    batch.chunks.insert(2, ("bad", {}, 0, None))
    batch.from_stage = "up"
    async with harness(can_accept_stream_before_payload=True) as one:
        one.control_plane.work.put_nowait(batch)
        await until(lambda: one.scheduler.inbox.qsize() == 6)
        got = [(name, item.data) for name, _, item in one.scheduler.received()]
        assert got == [(name, [name, number]) for number in range(3) for name in "ab"]
        assert (await one.failure()).request_id == "bad"
    sender.relay.close()


async def test_a_batch_that_was_lost_or_comes_from_a_stranger_fails_each_of_its_requests() -> None:
    async with harness(endpoints={}) as one:
        for name in "ab":
            one.submit(name)
        await until(lambda: one.scheduler.inbox.qsize() == 2)
        one.stage._lose("t", batch_of("a", "b"), "no peer was reached")
        await until(lambda: len(one.control_plane.completed) == 2)
        failures = [(done.request_id, done.success, done.error) for done in one.control_plane.completed]
        error = "sending to 't' failed: no peer was reached"
        assert [(name, False) for name in "ab"] == [failure[:2] for failure in failures]
        assert all(error in str(text) for *_, text in failures)
