"""Results that the emitting thread sends itself: in order, without blocking it, and their failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from stage_harness import HandScheduler, Harness, RecordedControlPlane, harness, payload
from waiting import until

from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.queues import Outbox
from sglang_omni.versions.asyncio import SharedEventLoop

WAIT_S = 60
# Now and then a timer has woken the loop, which then sends by itself.
REQUESTS = 50


class Threads(RecordedControlPlane):
    """Notes which thread sends to another stage, and may wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: asyncio.Event | None = None
        self.threads: list[str] = []

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        self.threads.append(threading.current_thread().name)
        if self.gate is not None:
            await self.gate.wait()
        await super().send_to_stage(target, endpoint, message)


class Refusing(Threads):
    """Sends nothing to other stages."""

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        self.threads.append(threading.current_thread().name)
        raise OSError("no way")


class Aborted(HandScheduler):
    """Notes which thread aborts."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[OutgoingMessage] = Outbox()
        self.threads: set[str] = set()

    def abort(self, request_id: str) -> None:
        self.threads.add(threading.current_thread().name)
        super().abort(request_id)


def run(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=SharedEventLoop) as runner:
        runner.run(serve())


async def emit(one: Harness, *names: str) -> None:
    """Puts results out, from a thread, each once the loop waits."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SharedEventLoop)

    def put() -> None:
        for name in names:
            while loop._turn.locked():
                pass
            one.scheduler.outbox.put(OutgoingMessage(name, "result", payload(name)))
        loop.call_soon_threadsafe(emitted.set)

    emitted = asyncio.Event()
    threading.Thread(target=put, name="emitting").start()
    await asyncio.wait_for(emitted.wait(), WAIT_S)


async def submit(one: Harness, count: int) -> list[str]:
    names = [f"r{number}" for number in range(count)]
    for name in names:
        one.submit(name)
    await until(lambda: one.scheduler.inbox.qsize() == count)
    return names


def test_a_result_is_sent_by_the_thread_that_emits_it() -> None:
    async def serve() -> None:
        control = Threads()
        async with harness(scheduler=Aborted(), control_plane=control, get_next=lambda *_: "t") as one:
            names = await submit(one, REQUESTS)
            await emit(one, names[0])  # Has the queue's task made.
            await one.sends(1)
            await emit(one, *names[1:])
            sent = await one.sends(REQUESTS)
            assert [message.request_id for _, message in sent] == names
            assert "emitting" in control.threads

    run(serve)


def test_the_thread_goes_on_while_a_send_waits_and_the_order_stays() -> None:
    async def serve() -> None:
        control = Threads()
        async with harness(scheduler=Aborted(), control_plane=control, get_next=lambda *_: "t") as one:
            names = await submit(one, REQUESTS)
            await emit(one, names[0])  # Has the queue's task made.
            await one.sends(1)
            control.gate = asyncio.Event()
            await emit(one, *names[1:])  # Returns although nothing leaves.
            assert len(control.sent) == 1
            one.stage.abort(names[2])
            control.gate.set()
            sent = await one.sends(REQUESTS - 1)
            assert [message.request_id for _, message in sent] == [n for n in names if n != names[2]]

    run(serve)


@pytest.mark.parametrize("fails", ["route", "send"])
def test_a_scheduler_is_only_aborted_in_the_loops_thread(fails: str) -> None:
    """The emitting one may hold locks of its scheduler."""

    async def serve() -> None:
        scheduler, control = Aborted(), Refusing()

        def get_next(request_id: str, output: Any) -> str:
            if fails == "route":
                control.threads.append(threading.current_thread().name)
                raise OSError("no way")
            return "t"

        async with harness(scheduler=scheduler, control_plane=control, get_next=get_next) as one:
            names = await submit(one, REQUESTS)
            await emit(one, names[0])
            await until(lambda: len(control.completed) == 1)
            await emit(one, *names[1:])
            await until(lambda: len(scheduler.aborted) == len(control.completed) == REQUESTS)
            assert "emitting" in control.threads
            assert scheduler.threads == {threading.current_thread().name}
            assert {done.request_id for done in control.completed} == set(names)
            assert all("no way" in str(done.error) for done in control.completed)

    run(serve)
