"""Reports of schedulers on their steps, and the heartbeat that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from scheduler_runs import running

from sglang_omni.executors import PreprocessingExecutor
from sglang_omni.pipeline.processes.pulse import take_pulse
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling import step_monitor
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.step_monitor import StepMonitor


@pytest.fixture(autouse=True)
def only_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitors of schedulers that other tests have left."""
    monkeypatch.setattr(step_monitor, "_monitors", type(step_monitor._monitors)())


def run(scheduler: SimpleScheduler, *request_ids: str) -> list[Any]:
    """The scheduler's outputs for these requests, which have all arrived when it starts."""
    for request_id in request_ids:
        payload = StagePayload(request_id, OmniRequest(None), None)
        scheduler.inbox.put(IncomingMessage(request_id, "new_request", payload))
    with running(scheduler):
        return [scheduler.outbox.get(timeout=60).data for _ in request_ids]


def fails(error: BaseException) -> Callable[[Any], Any]:
    def compute(payload: Any) -> Any:
        raise error

    return compute


def test_a_step_is_reported_while_it_lasts() -> None:
    seen = []
    run(SimpleScheduler(lambda payload: seen.append(take_pulse())), "a")
    assert seen[0].step_s > 0
    assert seen[0].step_thread
    assert take_pulse().step_s == 0


async def test_a_function_in_a_thread_of_an_executor_is_a_step() -> None:
    seen = []
    executor = PreprocessingExecutor(lambda payload: seen.append(take_pulse()))
    await executor.add_request(StagePayload("a", OmniRequest(None), None))
    assert seen[0].step_s > 0
    assert take_pulse().step_s == 0


def test_failures_in_a_row_are_counted_with_their_requests() -> None:
    scheduler = SimpleScheduler(fails(SystemError("no device")))
    run(scheduler, "a", "b", "a")
    pulse = take_pulse()
    assert (pulse.failed_steps, pulse.failed_requests, pulse.error) == (3, 2, "SystemError: no device")


def test_a_batch_that_fails_is_one_step_of_all_its_requests() -> None:
    scheduler = SimpleScheduler(print, batch_compute_fn=fails(MemoryError()), max_batch_size=4)
    run(scheduler, "a", "b")
    pulse = take_pulse()
    assert (pulse.failed_steps, pulse.failed_requests) == (1, 2)


@pytest.mark.parametrize("error", [RequestError("too loud"), asyncio.CancelledError()])
def test_a_requests_own_fault_does_not_count(error: BaseException) -> None:
    run(SimpleScheduler(fails(error)), "a", "b")
    assert take_pulse().failed_steps == 0


def test_a_result_ends_the_row() -> None:
    monitor = StepMonitor()
    monitor.fail(ValueError(), ["a"])
    assert take_pulse().failed_steps == 1
    monitor.succeed()
    assert take_pulse().failed_steps == 0


def test_the_longest_step_and_the_longest_row_are_reported() -> None:
    idle, busy = StepMonitor(), StepMonitor()
    busy.begin()
    for monitor, steps in ((idle, 1), (busy, 2)):
        for _ in range(steps):
            monitor.fail(ValueError(f"one of {steps}"), ["a"])
    pulse = take_pulse()
    assert pulse.step_s > 0
    assert pulse.error == "ValueError: one of 2"
