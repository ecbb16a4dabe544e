"""What a stage reports of a traced request, and that it records nothing of others."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from stage_harness import harness
from waiting import until

from sglang_omni.proto import OmniRequest, ProgressMessage, StagePayload, SubmitMessage
from sglang_omni.scheduling import step_trace
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.step_trace import StepTrace
from sglang_omni.scheduling.work_clock import WorkClock


async def details_of(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """What a stage reports of a request with this metadata, beside its work and wait."""
    messages: list[ProgressMessage] = []

    async def report(message: ProgressMessage) -> None:
        messages.append(message)

    scheduler = SimpleScheduler(lambda payload: time.sleep(0.02))
    async with harness(scheduler=scheduler) as one:
        one.stage.control_plane.send_progress = report  # type: ignore[method-assign]
        payload = StagePayload("r", OmniRequest(None, metadata=metadata), None)
        one.control_plane.work.put_nowait(SubmitMessage("r", payload))
        await until(lambda: any(message.spans for message in messages))
        assert scheduler.work_clock.traces == {}
    (message,) = [message for message in messages if message.spans]
    return message.details


async def test_a_traced_request_is_reported_step_by_step() -> None:
    details = await details_of({"traced": True})
    assert details is not None
    (visit,) = details.values()
    (step,) = visit["steps"]
    assert (step["kind"], step["batch"], step["steps"]) == ("step", 1, 1)
    assert step["seconds"] >= 0.02
    assert 0 <= visit["ready"] <= step["start"] + 1e-3
    assert [(hop["way"], hop["peer"]) for hop in visit["hops"]] == [
        ("from", "coordinator"),
        ("to", "coordinator"),
    ]
    assert visit["hops"][0]["at"] <= visit["ready"] <= visit["hops"][1]["at"]


async def test_nothing_is_recorded_of_another() -> None:
    assert await details_of({}) is None


def test_a_clock_without_traces_asks_for_no_kind() -> None:
    def kind(request_id: str) -> str:
        pytest.fail("the kind of a step is wanted of traced requests only")

    WorkClock().add_to_all(["a", "b"], 0.1, kind)


def test_late_steps_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(step_trace, "time", SimpleNamespace(monotonic=lambda: now))
    trace = StepTrace(since=100.0)
    for number in range(100):
        now += 1.0
        trace.step("prefill" if number == 0 else "decode", 0.5, 2 if number < 99 else 71)
    steps = trace.detail()["steps"]
    assert len(steps) == 16
    assert steps[0] == {"kind": "prefill", "start": 0.5, "seconds": 0.5, "batch": 2, "steps": 1}
    assert (steps[-1]["start"], steps[-1]["steps"]) == (15.5, 85)
    assert steps[-1]["start"] + steps[-1]["seconds"] == 100.0
    assert steps[-1]["batch"] == pytest.approx(2 + 69 / 85)
