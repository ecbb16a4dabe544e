"""What a stage does while its scheduler, or who it sends to, does not keep up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from stage_harness import WAIT_S, HandScheduler, Harness, harness, payload
from waiting import rounds, until

from sglang_omni.pipeline.stage.edges.edge import Payload, StreamChunk
from sglang_omni.pipeline.stage.input import AggregatedInput
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane, StageControlPlane
from sglang_omni.proto import AbortMessage, ProgressMessage, SubmitMessage
from sglang_omni.relay.base import create_relay
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.worker_pool import WorkerPool


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_omni.pipeline.stage.receiver._INBOX_HIGH", 20)
    monkeypatch.setattr("sglang_omni.pipeline.stage.receiver._INBOX_LOW", 5)
    monkeypatch.setattr("sglang_omni.pipeline.stage.sender._BACKLOG_HIGH", 50)
    monkeypatch.setattr("sglang_omni.pipeline.stage.sender._BACKLOG_LOW", 10)
    # Each of many chunks.
    monkeypatch.setattr("sglang_omni.pipeline.transport.ipc.sockets.QUEUED_MESSAGES", 10)


def schedulers() -> Iterator[Any]:
    own = HandScheduler()
    own.inbox = Inbox()
    yield pytest.param(own, id="own queue")
    yield pytest.param(HandScheduler(), id="plain queue")
    yield pytest.param(WorkerPool([HandScheduler()]), id="pool")


def taken(scheduler: Any, count: int) -> list[IncomingMessage]:
    inbox = scheduler._workers[0].inbox if isinstance(scheduler, WorkerPool) else scheduler.inbox
    return [inbox.get(timeout=WAIT_S) for _ in range(count)]


@pytest.mark.parametrize("scheduler", list(schedulers()))
async def test_a_full_inbox_leaves_work_where_it_comes_from(scheduler: Any) -> None:
    async with harness(scheduler=scheduler) as one:
        for index in range(100):
            one.submit(f"r{index}")
        await until(lambda: scheduler.inbox.qsize() >= 20)
        await rounds()
        assert scheduler.inbox.qsize() == 20
        assert one.control_plane.work.qsize() >= 79
        one.control_plane.aborts.put_nowait(AbortMessage("r50"))
        await until(lambda: one.stage._requests.is_dropped("r50"))  # An abort does not wait.
        seen = [message.request_id for message in await asyncio.to_thread(taken, scheduler, 99)]
        assert seen == [f"r{index}" for index in range(100) if index != 50]


async def test_a_sender_in_the_same_process_waits_for_a_full_stage() -> None:
    async with harness() as one:

        async def send() -> None:
            for index in range(40):
                await one.stage.receive(Payload(f"r{index}", "up", payload(f"r{index}")))
            for index in range(40):
                await one.stage.receive(StreamChunk("r0", "up", index, index))

        sending = asyncio.create_task(send())
        await until(lambda: one.scheduler.inbox.qsize() >= 20)
        await rounds()
        assert one.scheduler.inbox.qsize() == 20
        messages = await asyncio.to_thread(taken, one.scheduler, 80)
        await asyncio.wait_for(sending, WAIT_S)
        assert [message.request_id for message in messages[:40]] == [f"r{index}" for index in range(40)]
        assert [message.data.data for message in messages[40:]] == list(range(40))


async def test_nobody_waits_for_a_stage_that_stops() -> None:
    async with harness() as one:
        for index in range(100):
            one.submit(f"r{index}")
        await until(lambda: one.scheduler.inbox.qsize() >= 20)
        waiting = asyncio.create_task(one.stage.receive(Payload("late", "up", payload("late"))))
        await rounds()
        assert not waiting.done()
        await one.stage.stop()
        await asyncio.wait_for(waiting, WAIT_S)


class Producer:
    """Streams ``count`` chunks for each request, all requests at once, each in a thread of its own."""

    def __init__(self, count: int) -> None:
        self.inbox: Queue[IncomingMessage | None] = Queue()
        self.outbox: Queue[OutgoingMessage] = Outbox(limit=30)
        self.count = count
        self.emitted: dict[str, int] = {}

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            threading.Thread(target=self._stream, args=(message.request_id,), daemon=True).start()

    def _stream(self, request_id: str) -> None:
        for index in range(self.count):
            self.outbox.put(OutgoingMessage(request_id, "stream", index))
            self.emitted[request_id] = index + 1
        self.outbox.put(OutgoingMessage(request_id, "result", payload(request_id)))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None: ...


class Consumer(HandScheduler):
    """Keeps chunks in the order they come, from when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox()
        self.gate = threading.Event()
        self.chunks: list[tuple[str, int, Any]] = []
        self.done: list[str] = []

    def start(self) -> None:
        self.gate.wait()
        while (message := self.inbox.get()).request_id:
            if message.type == "stream_chunk":
                self.chunks.append((message.request_id, message.data.chunk_id, message.data.data))
            elif message.type == "stream_done":
                self.done.append(message.request_id)

    def stop(self) -> None:
        self.gate.set()
        self.inbox.put(IncomingMessage("", "new_request"))


@asynccontextmanager
async def two_stages(directory: Path, producer: Producer, consumer: Consumer) -> AsyncIterator[Stage]:
    """``up`` streams to ``down`` over real sockets."""
    endpoint = {name: f"ipc://{directory}/{name}" for name in ("completion", "abort", "up", "down")}
    coordinator = CoordinatorControlPlane(endpoint["completion"], endpoint["abort"])
    await coordinator.start()

    def stage(name: str, scheduler: Any, **options: Any) -> Stage:
        return Stage(
            name,
            control_plane=StageControlPlane(name, endpoint[name], endpoint["completion"], endpoint["abort"]),
            relay=create_relay("shm", engine_id=name),
            scheduler=scheduler,
            endpoints=endpoint,
            **options,
        )

    up = stage("up", producer, get_next=lambda *_: "down", stream_targets=["down"])
    down = stage("down", consumer, get_next=lambda *_: None, can_accept_stream_before_payload=True)
    running = [asyncio.create_task(one.run()) for one in (up, down)]
    await asyncio.sleep(0)
    try:
        yield up
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=WAIT_S)
        coordinator.close()


async def test_a_stalled_reader_stops_the_scheduler_that_feeds_it_and_nothing_is_lost(tmp_path: Path) -> None:
    producer, consumer = Producer(20_000), Consumer()
    async with two_stages(tmp_path, producer, consumer) as up:
        up._receiver.take(SubmitMessage("r", payload("r")))
        before = -1
        async with asyncio.timeout(WAIT_S):
            while before != (before := producer.emitted.get("r", 0)) or before == 0:
                await asyncio.sleep(0.1)
        assert before < 10_000  # What sockets and queues hold on the way.
        consumer.gate.set()
        await until(lambda: consumer.done == ["r"])
        assert consumer.chunks == [("r", index, index) for index in range(20_000)]


async def test_many_streams_arrive_whole_in_order_and_side_by_side(tmp_path: Path) -> None:
    producer, consumer = Producer(1500), Consumer()
    consumer.gate.set()
    names = [f"r{index}" for index in range(8)]
    async with two_stages(tmp_path, producer, consumer) as up:
        for name in names:
            up._receiver.take(SubmitMessage(name, payload(name)))
        await until(lambda: len(consumer.done) == len(names))
    for name in names:
        assert [(i, data) for owner, i, data in consumer.chunks if owner == name] == [
            (index, index) for index in range(1500)
        ]


async def test_a_long_stream_does_not_hold_up_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    async with harness(get_next=lambda *_: None) as one:
        keep = one.control_plane.send_stream

        async def slow(message: Any) -> None:
            begun.set()
            await gate.wait()
            await keep(message)

        monkeypatch.setattr(one.control_plane, "send_stream", slow)
        await fill(one, 1)
        await until(begun.is_set)
        for index in range(1, 40):
            one.emit("long", "stream", index)
        one.emit("short", "stream", "now")
        await until(lambda: one.stage._sender.backlog >= 40)
        gate.set()
        await until(lambda: len(one.control_plane.streamed) == 41)
        order = [message.request_id for message in one.control_plane.streamed]
        assert order.index("short") <= 2


async def fill(one: Harness, count: int) -> None:
    """Has the request ``long`` emit ``count`` chunks, with the request ``short`` beside it."""
    one.submit("long")
    one.submit("short")
    await until(lambda: one.scheduler.inbox.qsize() == 2)
    for index in range(count):
        one.emit("long", "stream", index)


async def test_a_stage_says_that_it_is_done_after_its_last_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    order: list[str] = []
    async with harness(get_next=lambda *_: None) as one:

        async def slow(message: Any) -> None:
            await gate.wait()
            order.append(f"chunk {message.chunk}")

        async def report(message: ProgressMessage) -> None:
            order.extend(f"finished {name}" for name, *_ in message.spans)

        monkeypatch.setattr(one.control_plane, "send_stream", slow)
        monkeypatch.setattr(one.stage.control_plane, "send_progress", report)
        await fill(one, 5)
        one.emit("short", "result", payload("short"))
        one.emit("long", "result", payload("long"))
        await until(lambda: not one.stage._requests.active)
        await rounds()  # Longer than any report waits.
        gate.set()
        await until(lambda: "finished long" in order)
        assert order.index("finished long") > order.index("chunk 4")


async def test_a_stream_that_waits_for_another_payload_too_long_ends_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sglang_omni.pipeline.stage.requests._HELD_MOST", 3)
    merging = AggregatedInput({"left", "right"}, lambda payloads: payloads["left"])
    async with harness(input_handler=merging) as one:
        await one.stage.receive(Payload("r", "left", payload("r")))
        for index in range(4):
            await one.stage.receive(StreamChunk("r", "left", index, index))
        failed = await one.failure()
        assert failed.request_id == "r"
        assert "3 stream messages wait for a payload of another source" in str(failed.error)
        await one.stage.receive(Payload("other", "left", payload("other")))
        for index in range(3):
            await one.stage.receive(StreamChunk("other", "left", index, index))
        await one.stage.receive(Payload("other", "right", payload("other")))
        kinds = [message.type for message in await asyncio.to_thread(taken, one.scheduler, 4)]
        assert kinds == ["new_request", "stream_chunk", "stream_chunk", "stream_chunk"]
