"""Stages that go down, and pipelines that are lost, as the coordinator sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from coordinator_harness import pipelines, soon
from waiting import until

from sglang_omni.pipeline.coordinator import requests
from sglang_omni.proto import ProgressMessage, RequestState, Unavailable

make = pytest.fixture(pipelines)


async def test_exactly_the_requests_a_dead_stage_holds_fail(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    held, passed, waiting = (pipeline.submit(name) for name in ("held", "passed", "waiting"))
    for _ in range(3):
        await pipeline.submitted()
    # `held` and `passed` went from first to audio; `passed` went on to text.
    for name in ("held", "passed"):
        await pipeline.progress("first", (name, "first", 0), (name, "audio", 1))
        await pipeline.progress("audio", (name, "first", -1), (name, "audio", 1))
    visit = ("passed", 0.1, 0.0, 0.0)
    await pipeline.progress("audio", ("passed", "text", 1), ("passed", "audio", -1), spans=[visit])
    await pipeline.progress("text", ("passed", "audio", -1), ("passed", "text", 1))
    await pipeline.settle()
    pipeline.coordinator.stage_down(["audio"], "stage 'audio' was killed by signal 9")
    with pytest.raises(RuntimeError, match="'audio' was killed by signal 9"):
        await soon(held)
    await pipeline.complete("text", "passed", 1)
    await pipeline.complete("text", "waiting", 2)
    assert (await soon(passed), await soon(waiting)) == (1, 2)


async def test_a_request_handed_to_a_stage_that_is_down_fails(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    pipeline.coordinator.stage_down(["audio"], "audio is gone")
    await pipeline.progress("first", ("r", "audio", 1), ("r", "first", 1))
    with pytest.raises(RuntimeError, match="audio is gone"):
        await soon(result)


async def test_a_request_handed_to_a_stage_before_it_was_back_fails_however_late_that_is_reported(
    make: Any,
) -> None:
    """The stage that handed it on could not report for a while, in which the other died and came back."""
    pipeline = await make(terminal_stages=["text"])
    lost, after = pipeline.submit("lost"), pipeline.submit("after")
    for _ in range(2):
        await pipeline.submitted()
    pipeline.coordinator.stage_down(["audio"], "audio is gone")
    pipeline.coordinator.stage_up(["audio"])
    for name, late_s in (("after", 0.0), ("lost", 60.0)):
        changes = [(name, "audio", 1), (name, "first", 1)]
        await pipeline.stages["first"].send_progress(ProgressMessage("first", changes, late_s=late_s))
    with pytest.raises(Unavailable, match="audio is gone"):
        await soon(lost)
    await pipeline.complete("text", "after", 1)
    assert await soon(after) == 1


async def test_a_dead_stage_is_no_fault_of_its_requests(make: Any) -> None:
    """So that they may be sent elsewhere: those it held, and those that come to it later."""
    pipeline = await make()
    held, later = pipeline.submit("held"), pipeline.submit("later")
    for _ in range(2):
        await pipeline.submitted()
    await pipeline.progress("first", ("held", "audio", 1), ("held", "first", -1))
    await pipeline.settle()
    pipeline.coordinator.stage_down(["audio"], "audio is gone")
    await pipeline.progress("first", ("later", "audio", 1), ("later", "first", -1))
    for result in (held, later):
        with pytest.raises(Unavailable, match="audio is gone"):
            await soon(result)


async def test_a_stage_that_dies_between_two_sends_and_before_its_report_has_held_its_request(
    make: Any,
) -> None:
    """What came from it is all that is known of its work: one message, with which the sum is zero."""
    pipeline = await make()
    held, other = pipeline.submit("held"), pipeline.submit("other")
    for _ in range(2):
        await pipeline.submitted()
    await pipeline.progress("first", ("other", "first", 0), ("other", "text", 1))
    await pipeline.progress("audio", ("held", "audio", 1), ("held", "first", -1))
    await pipeline.settle()
    pipeline.coordinator.stage_down(["first"], "first is gone")
    for result in (held, other):
        with pytest.raises(Unavailable, match="first is gone"):
            await soon(result)


async def test_new_requests_wait_for_a_stage_that_hangs(make: Any) -> None:
    pipeline = await make()
    running = pipeline.submit("running")
    await pipeline.submitted()
    replicas = pipeline.coordinator.replicas
    assert replicas.mark_hung(["audio"], "has not answered for 6 s")
    assert not replicas.mark_hung(["audio"], "has not answered for 7 s")
    waiting = pipeline.submit("waiting")
    await until(lambda: pipeline.coordinator.request_state("waiting") is RequestState.PENDING)
    health = pipeline.coordinator.health()
    assert health["hung_stages"] == health["unserved_stages"] == {"audio": "has not answered for 7 s"}
    await pipeline.complete("text", "running", 1)
    assert await soon(running) == 1
    assert replicas.clear_hung(["audio"])
    await pipeline.submitted()
    await pipeline.complete("text", "waiting", 2)
    assert await soon(waiting) == 2
    assert pipeline.coordinator.health()["unserved_stages"] == {}


async def test_a_stage_that_is_down_for_long_is_reported_as_unserved(make: Any) -> None:
    pipeline = await make()
    pipeline.coordinator.replicas.unhealthy_after = 0.2
    pipeline.coordinator.stage_down(["audio"], "restarting")
    assert pipeline.coordinator.health()["unserved_stages"] == {}
    await until(lambda: pipeline.coordinator.health()["unserved_stages"] == {"audio": "restarting"})
    pipeline.coordinator.stage_up(["audio"])
    assert pipeline.coordinator.health()["unserved_stages"] == {}


async def test_new_requests_wait_until_every_stage_is_up(make: Any) -> None:
    pipeline = await make()
    pipeline.coordinator.stage_down(["audio", "text"], "restarting")
    result = pipeline.submit("r")
    await until(lambda: pipeline.coordinator.request_state("r") is RequestState.PENDING)
    assert pipeline.coordinator.health()["down_stages"] == {"audio": "restarting", "text": "restarting"}
    pipeline.coordinator.stage_up(["audio"])
    await pipeline.settle()
    assert pipeline.coordinator.request_state("r") is RequestState.PENDING
    pipeline.coordinator.stage_up(["text"])
    await pipeline.submitted()
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1


async def test_waiting_for_a_stage_times_out(make: Any) -> None:
    pipeline = await make(stage_down_timeout=0.05)
    pipeline.coordinator.stage_down(["audio"], "restarting")
    with pytest.raises(RuntimeError, match=r"'audio' still down after 0.05 s: restarting"):
        await soon(pipeline.coordinator.submit("r", None))


async def test_a_waiting_request_can_be_aborted(make: Any) -> None:
    pipeline = await make()
    pipeline.coordinator.stage_down(["audio"], "restarting")
    result = pipeline.submit("r")
    await until(lambda: pipeline.coordinator.request_state("r") is RequestState.PENDING)
    assert await pipeline.coordinator.abort("r")
    with pytest.raises(asyncio.CancelledError):
        await soon(result)


async def test_a_lost_pipeline_fails_everything_now_and_later(make: Any) -> None:
    pipeline = await make()
    running = pipeline.submit("r")
    await pipeline.submitted()
    pipeline.coordinator.stage_down(["audio"], "restarting")
    waiting = pipeline.submit("s")
    await until(lambda: pipeline.coordinator.request_state("s") is RequestState.PENDING)
    pipeline.coordinator.fail_all("the restart budget is spent")
    for result in (running, waiting, pipeline.submit("t")):
        with pytest.raises(RuntimeError, match="budget is spent"):
            await soon(result)
    health = pipeline.coordinator.health()
    assert (health["running"], health["error"]) == (False, "the restart budget is spent")


async def test_stopping_fails_what_is_running(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.coordinator.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await soon(result)


async def test_a_finished_request_that_stages_still_hold_is_aborted_there(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_SETTLE_S", 0.05)
    pipeline = await make(terminal_stages=["text"])
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.progress("first", ("r", "text", 1), ("r", "audio", 1), ("r", "first", 1))
    await pipeline.progress("text", ("r", "first", -1), ("r", "text", 0))
    await pipeline.progress("audio", ("r", "first", -1), ("r", "audio", 1))
    await pipeline.settle()
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1
    aborted = [(await soon(pipeline.stages["audio"].recv_abort())).request_id for _ in range(4)]
    assert "r" in aborted  # Beside the markers of `settle`.
    assert pipeline.coordinator._counts.held_by(["audio"]) == []
