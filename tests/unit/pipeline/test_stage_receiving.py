"""What a stage takes in: payloads, fan-in, streams, aborts, late and unreadable messages."""

from __future__ import annotations

import asyncio
import errno
from queue import Queue
from typing import Any

import numpy as np
import pytest
from stage_harness import WAIT_S, HandScheduler, Harness, harness, payload
from waiting import rounds, until

from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.edge import End, Payload, StreamChunk
from sglang_omni.pipeline.stage.input import AggregatedInput
from sglang_omni.proto import (
    AbortMessage,
    DataReadyMessage,
    FlushCacheMessage,
    ProfilerStopMessage,
    StagePayload,
    SubmitMessage,
)
from sglang_omni.relay.base import create_relay
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.queues import Inbox


class Sender:
    """Another stage, which writes to the harness's stage through a relay of its own."""

    def __init__(self, one: Harness, name: str = "up") -> None:
        self.one = one
        self.name = name
        self.relay = create_relay("shm", engine_id=name)

    async def send_to_stage(self, target: str, endpoint: str, message: DataReadyMessage) -> None:
        self.one.control_plane.work.put_nowait(message)

    async def payload(self, request_id: str, data: Any = None) -> None:
        metadata, _ = await relay_io.write_payload(self.relay, request_id, payload(request_id, data))
        self.one.control_plane.work.put_nowait(DataReadyMessage(request_id, self.name, "s", metadata))

    async def chunk(self, request_id: str, chunk_id: int, data: Any) -> None:
        await relay_io.send_stream_chunk(
            self.relay,
            self,
            request_id=request_id,
            data=data,
            target_stage="s",
            target_endpoint="",
            from_stage=self.name,
            chunk_id=chunk_id,
            metadata={"n": chunk_id},
        )

    async def signal(self, request_id: str, **fields: Any) -> None:
        await relay_io.send_stream_signal(
            self, request_id=request_id, target_stage="s", target_endpoint="", from_stage=self.name, **fields
        )


async def received(one: Harness, count: int) -> list[tuple[str, str, Any]]:
    await until(lambda: one.scheduler.inbox.qsize() >= count)
    return one.scheduler.received()


async def test_a_submitted_request_reaches_the_scheduler() -> None:
    async with harness() as one:
        sent = one.submit("r", {"raw_inputs": 1})
        assert await received(one, 1) == [("r", "new_request", sent)]


async def test_a_payload_of_another_stage_reaches_the_scheduler() -> None:
    async with harness() as one:
        sender = Sender(one)
        await sender.payload("r", {"x": (1, 2)})
        [(request_id, kind, got)] = await received(one, 1)
        assert (request_id, kind) == ("r", "new_request")
        assert got == payload("r", {"x": (1, 2)})
        sender.relay.close()


async def test_an_unreadable_payload_fails_its_request_alone() -> None:
    cleaned: list[str] = []
    async with harness() as one:
        one.relay.cleanup = cleaned.append
        one.control_plane.work.put_nowait(DataReadyMessage("r", "up", "s", {"nonsense": 1}))
        failure = await one.failure()
        assert failure.request_id == "r"
        assert failure.success is False
        assert str(failure.error).startswith("relay read failed: ")
        assert "r" in cleaned
        await one.still_works()


async def test_a_payload_whose_sender_is_gone_is_no_fault_of_the_request() -> None:
    """The reader may know before the coordinator that the sender's process, or host, has died."""
    async with harness() as one:
        sender = Sender(one)
        metadata, _ = await relay_io.write_payload(sender.relay, "r", payload("r", np.zeros(100_000)))
        sender.relay.cleanup("r")
        one.control_plane.work.put_nowait(DataReadyMessage("r", "up", "s", metadata))
        failure = await one.failure()
        assert str(failure.error).startswith("relay read failed: RelayReadError")
        assert failure.error_info is not None
        assert failure.error_info["status"] == 503
        sender.relay.close()


async def test_a_stage_that_lacks_descriptors_is_no_fault_of_the_request() -> None:
    async with harness() as one:
        sender = Sender(one)
        await sender.payload("r")
        await asyncio.to_thread(one.scheduler.inbox.get)
        one.scheduler.outbox.put(OutgoingMessage("r", "error", OSError(errno.EMFILE, "Too many open files")))
        failure = await one.failure()
        assert failure.error == "OSError: [Errno 24] Too many open files"
        assert failure.error_info is not None
        assert failure.error_info["status"] == 503
        sender.relay.close()


async def test_an_entry_message_without_a_payload_fails_its_request_alone() -> None:
    async with harness() as one:
        one.control_plane.work.put_nowait(SubmitMessage("r", {"raw": 1}))
        assert "expected a StagePayload" in str((await one.failure()).error)
        await one.still_works()


async def test_messages_a_stage_has_no_use_for_are_ignored() -> None:
    async with harness() as one:
        one.control_plane.work.put_nowait(AbortMessage("r"))
        one.control_plane.work.put_nowait(ProfilerStopMessage())
        await one.still_works()


async def test_a_flush_reaches_a_scheduler_that_has_a_cache() -> None:
    class Caching(HandScheduler):
        flushes = 0

        def flush_cache(self) -> None:
            self.flushes += 1

    async with harness(scheduler=Caching()) as one:
        one.control_plane.work.put_nowait(FlushCacheMessage())
        await until(lambda: one.scheduler.flushes == 1)
    async with harness() as without:
        without.control_plane.work.put_nowait(FlushCacheMessage())
        await without.still_works()


# --- fan-in ----------------------------------------------------------------------------------------


def merge(received: dict[str, StagePayload]) -> StagePayload:
    return payload("r", {source: one.data for source, one in sorted(received.items())})


async def test_fan_in_waits_for_all_and_merges() -> None:
    async with harness(input_handler=AggregatedInput({"left", "right"}, merge)) as one:
        left, right = Sender(one, "left"), Sender(one, "right")
        await left.payload("r", 1)
        await left.payload("other", 9)
        await right.payload("r", 2)
        [(request_id, _, got)] = await received(one, 1)
        assert request_id == "r"
        assert got.data == {"left": 1, "right": 2}
        left.relay.close()
        right.relay.close()


async def test_a_failing_merge_fails_its_request_alone() -> None:
    def broken(received: dict[str, StagePayload]) -> StagePayload:
        raise KeyError("merge")

    async with harness(input_handler=AggregatedInput({"up", "coordinator"}, broken)) as one:
        sender = Sender(one)
        await sender.payload("r", 1)
        one.submit("r")
        assert "KeyError" in str((await one.failure()).error)
        assert one.stage.input_handler._received == {}
        sender.relay.close()


async def test_a_source_outside_wait_for_fails_its_request() -> None:
    async with harness(input_handler=AggregatedInput({"left"}, merge)) as one:
        sender = Sender(one, "stranger")
        await sender.payload("r", 1)
        assert "outside static wait_for" in str((await one.failure()).error)
        sender.relay.close()


# --- streams ---------------------------------------------------------------------------------------


async def test_chunks_follow_their_payload_in_order() -> None:
    async with harness() as one:
        sender = Sender(one)
        await sender.payload("r", 0)
        for index in range(5):
            await sender.chunk("r", index, {"d": index})
        await sender.signal("r", is_done=True)
        got = await received(one, 7)
        assert [kind for _, kind, _ in got] == ["new_request", *["stream_chunk"] * 5, "stream_done"]
        items = [data for _, kind, data in got if kind == "stream_chunk"]
        assert [(i.chunk_id, i.data, i.from_stage, i.metadata) for i in items] == [
            (n, {"d": n}, "up", {"n": n}) for n in range(5)
        ]
        assert got[-1][2] == "up"
        sender.relay.close()


async def test_a_chunk_before_its_payload_fails_the_request() -> None:
    async with harness() as one:
        sender = Sender(one)
        await sender.chunk("r", 0, 1)
        failure = await one.failure()
        assert "before the request's payload" in str(failure.error)
        assert one.scheduler.aborted == ["r"]
        await one.still_works()
        sender.relay.close()


async def test_a_stage_may_accept_chunks_before_the_payload() -> None:
    async with harness(can_accept_stream_before_payload=True) as one:
        sender = Sender(one)
        await sender.chunk("r", 0, 1)
        await sender.signal("r", is_done=True)
        await sender.payload("r", 0)
        got = await received(one, 3)
        assert [kind for _, kind, _ in got] == ["stream_chunk", "stream_done", "new_request"]
        sender.relay.close()


async def test_chunks_wait_while_the_payloads_are_being_merged() -> None:
    async with harness(input_handler=AggregatedInput({"left", "right"}, merge)) as one:
        left, right = Sender(one, "left"), Sender(one, "right")
        await left.payload("r", 1)
        await left.chunk("r", 0, "c")
        await left.signal("r", is_done=True)
        active = one.stage._requests.active
        await until(lambda: "r" in active and len(active["r"].held) == 2)
        assert one.scheduler.inbox.empty()
        await right.payload("r", 2)
        got = await received(one, 3)
        assert [kind for _, kind, _ in got] == ["new_request", "stream_chunk", "stream_done"]
        left.relay.close()
        right.relay.close()


async def test_an_empty_stream_may_end_before_the_payload() -> None:
    async with harness() as one:
        sender = Sender(one)
        await sender.signal("r", is_done=True)
        await sender.payload("r", 0)
        got = await received(one, 2)
        assert [kind for _, kind, _ in got] == ["new_request", "stream_done"]
        sender.relay.close()


async def test_a_failed_stream_fails_the_request() -> None:
    async with harness() as one:
        sender = Sender(one)
        one.submit("r")
        await received(one, 1)
        await sender.signal("r", error="up broke")
        failure = await one.failure()
        assert "stream from 'up' failed: up broke" in str(failure.error)
        assert one.scheduler.aborted == ["r"]
        sender.relay.close()


async def test_chunks_for_a_finished_request_are_drained_quietly() -> None:
    async with harness() as one:
        sender = Sender(one)
        one.submit("r")
        await received(one, 1)
        one.emit("r", "result", 1)
        await until(lambda: bool(one.control_plane.completed))
        await sender.chunk("r", 0, "late")
        await sender.signal("r", is_done=True)
        await sender.payload("next", 1)
        assert [request_id for request_id, _, _ in await received(one, 1)] == ["next"]
        assert [m.success for m in one.control_plane.completed] == [True]
        sender.relay.close()


async def test_local_payloads_chunks_and_signals_take_the_same_way() -> None:
    async with harness() as one:
        sent = payload("r", {"x": object()})
        await one.stage.receive(Payload("r", "up", sent))
        await one.stage.receive(StreamChunk("r", "up", 0, "c"))
        await one.stage.receive(End("r", "up"))
        got = await received(one, 3)
        assert [kind for _, kind, _ in got] == ["new_request", "stream_chunk", "stream_done"]
        assert got[0][2] is sent
        await one.stage.receive(End("r", "up", "broken"))
        assert "stream from 'up' failed: broken" in str((await one.failure()).error)


# --- aborts ----------------------------------------------------------------------------------------


async def test_an_abort_reaches_scheduler_relay_and_input() -> None:
    cleaned: list[str] = []
    handler = AggregatedInput({"coordinator", "up"}, merge)
    async with harness(input_handler=handler) as one:
        one.relay.cleanup = cleaned.append
        one.submit("r")
        await until(lambda: "r" in handler._received)
        one.control_plane.aborts.put_nowait(AbortMessage("r"))
        await until(lambda: one.scheduler.aborted == ["r"])
        assert cleaned == ["r"]
        assert handler._received == {}
        assert one.stage._requests.active == {}


async def test_what_comes_after_an_abort_is_drained_quietly() -> None:
    async with harness() as one:
        sender = Sender(one)
        one.control_plane.aborts.put_nowait(AbortMessage("r"))
        await until(lambda: one.scheduler.aborted == ["r"])
        await sender.payload("r", 1)
        await sender.chunk("r", 0, 1)
        await sender.signal("r", is_done=True)
        await sender.signal("r", error="x")
        one.submit("r")
        one.emit("r", "result", 1)
        await sender.payload("next", 1)
        assert [request_id for request_id, _, _ in await received(one, 1)] == ["next"]
        assert one.control_plane.completed == []
        sender.relay.close()


async def test_an_aborting_scheduler_that_raises_does_not_stop_the_stage() -> None:
    async with harness() as one:
        one.scheduler.abort = lambda request_id: 1 / 0
        one.control_plane.aborts.put_nowait(AbortMessage("r"))
        await one.still_works()


async def test_what_is_remembered_of_gone_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with harness() as one:
        table = one.stage._requests
        table._dropped._limit = 100
        for index in range(1000):
            one.stage.abort(f"a{index}")
        assert len(table._dropped) == 100
        assert table.is_dropped("a999")
        assert not table.is_dropped("a1")
        monkeypatch.setattr("sglang_omni.pipeline.stage.requests._REMEMBERED_IDS", 100)
        for index in range(300):
            table.receive_payload(f"f{index}", None)
            table.finish(f"f{index}")
        assert len(table._finished) == 100
        assert table.active == {}
        await asyncio.sleep(0)


@pytest.mark.parametrize("inbox", [Inbox, Queue])
async def test_large_payloads_are_left_with_their_sender_while_the_scheduler_is_behind(
    monkeypatch: pytest.MonkeyPatch, inbox: type
) -> None:
    size = 64 << 10
    monkeypatch.setattr("sglang_omni.pipeline.stage.receiver._BYTES_HIGH", 5 * size)
    monkeypatch.setattr("sglang_omni.pipeline.stage.receiver._BYTES_LOW", 2 * size + size // 2)
    scheduler = HandScheduler()
    scheduler.inbox = inbox()
    async with harness(scheduler=scheduler) as one:
        sender = Sender(one)
        for index in range(12):
            await sender.payload(f"r{index}", np.zeros(size, np.uint8))
        await until(lambda: scheduler.inbox.qsize() == 5)
        await rounds()
        assert scheduler.inbox.qsize() == 5
        assert sender.relay.arena.outstanding() == 12  # The others wait there.
        taken = [scheduler.inbox.get(timeout=WAIT_S).request_id for _ in range(2)]
        await rounds()
        assert scheduler.inbox.qsize() == 3  # Half of the most is not free yet.
        taken.append(scheduler.inbox.get(timeout=WAIT_S).request_id)
        await until(lambda: scheduler.inbox.qsize() == 5)
        while len(taken) < 12:
            taken.append((await asyncio.to_thread(scheduler.inbox.get, timeout=WAIT_S)).request_id)
        assert taken == [f"r{index}" for index in range(12)]
        sender.relay.close()


async def test_what_a_stream_brings_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 << 10
    monkeypatch.setattr("sglang_omni.pipeline.stage.receiver._BYTES_HIGH", 3 * size)
    monkeypatch.setattr("sglang_omni.pipeline.stage.receiver._BYTES_LOW", size)
    async with harness(can_accept_stream_before_payload=True) as one:
        sender = Sender(one)
        for index in range(8):
            await sender.chunk("r", index, np.zeros(size, np.uint8))
        await until(lambda: one.scheduler.inbox.qsize() == 3)
        await rounds()
        assert one.scheduler.inbox.qsize() == 3
        got = [await asyncio.to_thread(one.scheduler.inbox.get, timeout=WAIT_S) for _ in range(8)]
        assert [message.data.chunk_id for message in got] == list(range(8))
        sender.relay.close()
