"""How a stage starts, stops and crashes."""

from __future__ import annotations

import asyncio

import pytest
from stage_harness import WAIT_S, HandScheduler, Harness, RecordedControlPlane, harness, payload
from waiting import rounds, until

from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.proto import ShutdownMessage, SubmitMessage
from sglang_omni.relay.base import create_relay


async def ended(one: Harness) -> None:
    assert one.running is not None
    await asyncio.wait_for(asyncio.shield(one.running), WAIT_S)


async def test_a_shutdown_message_ends_run_and_closes_everything() -> None:
    closed: list[bool] = []
    async with harness() as one:
        one.relay.close = lambda: closed.append(True)
        one.control_plane.work.put_nowait(ShutdownMessage())
        await ended(one)
        assert one.scheduler.stops == 1
        assert one.control_plane.closed
        assert closed == [True]
        await one.stage.stop()  # A second time is harmless.
        assert one.scheduler.stops == 1


async def test_without_a_scheduler_payloads_go_on_as_they_are() -> None:
    control_plane = RecordedControlPlane()
    stage = Stage(
        name="s",
        control_plane=control_plane,
        get_next=lambda *_: "t",
        endpoints={"t": "x"},
        relay=create_relay("shm", engine_id="s"),
    )
    running = asyncio.create_task(stage.run())
    control_plane.work.put_nowait(SubmitMessage("a", payload("a", {"n": 1})))
    await until(lambda: bool(control_plane.sent))
    assert control_plane.sent[0][0] == "t"
    running.cancel()
    await asyncio.wait({running}, timeout=WAIT_S)


async def test_results_emitted_before_the_end_are_still_sent() -> None:
    async with harness(get_next=lambda request_id, output: "t") as one:
        for index in range(50):
            one.submit(f"r{index}")
        await until(lambda: one.scheduler.inbox.qsize() == 50)
        for index in range(50):
            one.emit(f"r{index}", "result", payload(f"r{index}"))
        one.control_plane.work.put_nowait(ShutdownMessage())
        await ended(one)
        assert len(one.control_plane.sent) == 50


async def test_a_crashed_scheduler_fails_its_requests_and_ends_run() -> None:
    async with harness() as one:
        one.submit("a")
        one.submit("b")
        await until(lambda: one.scheduler.inbox.qsize() == 2)
        one.scheduler.finish.put(MemoryError("out of memory"))
        with pytest.raises(RuntimeError, match=r"Scheduler thread .*'s'.*out of memory") as caught:
            await ended(one)
        assert isinstance(caught.value.__cause__, MemoryError)
        assert one.scheduler.stops == 1
        failures = {m.request_id: m for m in one.control_plane.completed}
        assert failures.keys() == {"a", "b"}
        assert not any(m.success for m in failures.values())
        assert "out of memory" in str(failures["a"].error)
        assert one.control_plane.closed


async def test_a_control_plane_that_breaks_ends_run_with_its_error() -> None:
    async with harness() as one:

        async def broken() -> None:
            raise OSError("socket gone")

        one.control_plane.recv = broken
        one.submit("r")
        with pytest.raises(OSError, match="socket gone"):
            await ended(one)
        assert one.scheduler.stops == 1


async def test_cancelling_run_stops_the_stage() -> None:
    scheduler = HandScheduler()
    async with harness(scheduler=scheduler) as one:
        assert one.running is not None
        await rounds()
        one.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(one)
        assert scheduler.stops == 1
        assert one.control_plane.closed


async def test_a_burst_beyond_the_backlog_is_sent_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_omni.pipeline.stage.sender._BACKLOG_HIGH", 100)
    monkeypatch.setattr("sglang_omni.pipeline.stage.sender._BACKLOG_LOW", 10)
    gate = asyncio.Event()
    async with harness() as one:
        keep = one.control_plane.send_stream

        async def slow(message: object) -> None:
            await gate.wait()
            await keep(message)

        one.control_plane.send_stream = slow
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        for index in range(2000):
            one.emit("r", "stream", index)
        await until(lambda: one.stage._sender.backlog > 100)
        await rounds()
        assert not one.scheduler.outbox.empty()  # Left where the scheduler can see it.
        gate.set()
        await until(lambda: len(one.control_plane.streamed) == 2000)
        assert [m.chunk for m in one.control_plane.streamed] == list(range(2000))
