"""What the watchdog ends a process for, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from sglang_omni.config import WatchdogConfig
from sglang_omni.pipeline.coordinator.instances import ReplicaTable
from sglang_omni.pipeline.processes import watchdog as module
from sglang_omni.pipeline.processes.pulse import Pulse, Vitals
from sglang_omni.pipeline.processes.watchdog import Watchdog

BROKEN = Pulse(failed_steps=5, failed_requests=2, failing_s=11.0, error="RuntimeError: no device")


class Worker:
    """A place in the plan whose process says what a test has it say."""

    def __init__(self, pulse: Pulse) -> None:
        self.vitals = Vitals()
        self.vitals.hear(pulse)
        self.processes = [SimpleNamespace(name="p", pid=1, vitals=self.vitals, state="")]
        self.instances = ["stage"]
        self.name = "'p'"
        self.is_up = True
        self.is_ending = False
        self.faults: list[str] = []
        self.looks = 0

    def end(self, process: Any, fault: str) -> None:
        self.faults.append(fault)
        self.is_ending = True

    def start_again(self, pulse: Pulse) -> None:
        self.is_ending = False
        self.vitals.hear(pulse)


@asynccontextmanager
async def watched(worker: Worker, **limits: float) -> AsyncIterator[ReplicaTable]:
    replicas = ReplicaTable()
    config = WatchdogConfig(**limits)

    def processes() -> list[Any]:
        worker.looks += 1
        return [worker]

    watching = asyncio.create_task(Watchdog(config, processes, replicas).run())
    try:
        yield replicas
    finally:
        watching.cancel()
        await asyncio.wait({watching})


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.02)


async def some_looks(worker: Worker) -> None:
    """Returns after at least four whole looks at it."""
    seen = worker.looks
    await until(lambda: worker.looks > seen + 4)


@pytest.mark.parametrize(
    ("pulse", "fault"),
    [
        (BROKEN, "failed 5 steps in a row, .* no result for 11 s, .* RuntimeError: no device"),
        (Pulse(step_s=301.0, step_thread="worker_0"), r"in one step for 301 s \(thread 'worker_0'\)"),
    ],
)
async def test_what_ends_a_process(pulse: Pulse, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(pulse)
    async with watched(worker) as replicas:
        await until(lambda: bool(worker.faults))
        assert "it is being ended" in replicas.health()["hung_stages"]["stage"]
    assert caplog.messages
    with pytest.raises(ValueError, match=fault):
        raise ValueError(worker.faults[0])


@pytest.mark.parametrize(
    "pulse",
    [
        Pulse(step_s=299.0),
        Pulse(failed_steps=4, failed_requests=4, failing_s=99.0),
        Pulse(failed_steps=99, failed_requests=1, failing_s=99.0),
        Pulse(failed_steps=99, failed_requests=16, failing_s=9.0),
    ],
    ids=["a long step", "few failures", "one request that is tried again", "a burst"],
)
async def test_what_does_not(pulse: Pulse) -> None:
    worker = Worker(pulse)
    async with watched(worker) as replicas:
        await some_looks(worker)
        assert replicas.health()["hung_stages"] == {}
    assert worker.faults == []


async def test_limits_of_zero_are_none() -> None:
    worker = Worker(Pulse(step_s=1e6, failed_steps=99, failed_requests=16, failing_s=1e6))
    worker.vitals.excuse(-1e6)
    async with watched(worker, step_timeout=0, heartbeat_timeout=0, max_failed_steps=0) as replicas:
        await some_looks(worker)
        assert "has not answered for" in replicas.health()["hung_stages"]["stage"]
    assert worker.faults == []


async def test_a_successor_that_fails_likewise_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are made to fail cannot have a process started again all the time."""
    worker = Worker(BROKEN)
    async with watched(worker):
        await until(lambda: len(worker.faults) == 1)
        worker.start_again(BROKEN)
        await some_looks(worker)
        assert len(worker.faults) == 1
        # Only a minute later; and the next time after two.
        monkeypatch.setattr(module, "_SPARED_S", 0.0)
        await until(lambda: len(worker.faults) == 2)


async def test_silence_is_reported_before_it_ends_a_process_and_forgotten_when_it_ends() -> None:
    worker = Worker(Pulse())
    async with watched(worker) as replicas:
        worker.vitals.excuse(-6.0)
        await until(lambda: "stage" in replicas.health()["unserved_stages"])
        worker.vitals.hear(Pulse())
        await until(lambda: not replicas.health()["hung_stages"])
        worker.vitals.excuse(-31.0)
        await until(lambda: bool(worker.faults))


async def test_a_silent_host_is_no_fault_of_its_processes() -> None:
    """The launcher of hosts gives it up, or hears of it again."""
    worker = Worker(Pulse())
    worker.vitals = worker.processes[0].vitals = Vitals(through_host=True)
    worker.vitals.hear(Pulse(), 0.5)
    worker.vitals.excuse(-99.0)
    async with watched(worker) as replicas:
        await until(lambda: "stage" in replicas.health()["hung_stages"])
        await some_looks(worker)
        assert worker.faults == []
        worker.vitals.hear(Pulse(), 31.0)
        await until(lambda: bool(worker.faults))


async def test_a_parent_that_was_held_up_itself_blames_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a large request in the server's event loop, whose clock here leaps."""
    worker = Worker(Pulse())
    loop = asyncio.get_running_loop()
    on_time, held_up = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: on_time() + held_up)
    async with watched(worker) as replicas:
        await some_looks(worker)
        held_up = 99.0
        await some_looks(worker)
        assert replicas.health()["hung_stages"] == {}
    assert worker.faults == []
