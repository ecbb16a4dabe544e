"""What a stage tells of its time: for how long it worked on a request, and for how long it did not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from stage_harness import harness
from waiting import until

from sglang_omni.proto import ProgressMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

WAIT_S = 60


async def spans_of(scheduler: Any, act: Callable[[Any], None]) -> list[list[Any]]:
    """What a stage with this scheduler reports of a request that ``act`` answers."""
    messages: list[ProgressMessage] = []

    async def report(message: ProgressMessage) -> None:
        messages.append(message)

    async with harness(scheduler=scheduler) as one:
        one.stage.control_plane.send_progress = report  # type: ignore[method-assign]
        one.submit("r")
        act(one)
        await until(lambda: any(message.spans for message in messages))
    return [span for message in messages for span in message.spans]


async def test_a_stage_tells_work_and_wait() -> None:
    scheduler = SimpleScheduler(lambda payload: time.sleep(0.02))
    ((request_id, worked, waited, began),) = await spans_of(scheduler, lambda one: None)
    assert request_id == "r"
    assert worked >= 0.02
    assert waited >= 0.0
    assert abs(began - time.time()) < WAIT_S
    assert scheduler.work_clock.records == {}


async def test_a_scheduler_that_does_not_tell_works_all_the_time() -> None:
    ((_, worked, waited, _),) = await spans_of(None, lambda one: one.emit("r", "result", None))
    assert worked > 0.0
    assert waited == 0.0


async def test_nothing_is_kept_of_an_aborted_request() -> None:
    gate = threading.Event()
    scheduler = SimpleScheduler(lambda payload: gate.wait(WAIT_S))
    async with harness(scheduler=scheduler) as one:
        one.submit("r")
        await until(lambda: "r" in scheduler.work_clock.records)
        one.stage.abort("r")
        gate.set()
        await until(lambda: scheduler.stats()["num_running_reqs"] == 0)
        assert scheduler.work_clock.records == {}
