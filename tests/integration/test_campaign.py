"""The campaign in virtual time: it holds, it plays the same twice, and it finds what was broken before."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from campaign import schedules
from campaign.run import main
from waiting import PATIENCE

from sglang_omni.pipeline.coordinator.coordinator import Coordinator
from sglang_omni.pipeline.coordinator.requests import WireIds
from sglang_omni.pipeline.stage.input import AggregatedInput
from sglang_omni.pipeline.stage.requests import RequestTable
from sglang_omni.relay import put_ledger
from sglang_omni.relay.put_ledger import PutLedger

# Schedules of seed 1 that once failed. Each is also played without the mend, to see that it finds the fault.
KEPT = {
    214: "a request's end took back what another had under way, whose id began with its own and a colon",
    273: "a stage was killed with the rest of a stream unsent that its receiver had begun to read",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Killed stages log much."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("number", KEPT)
def test_what_failed_once_holds(number: int) -> None:
    assert schedules.play(schedules.drawn(1, number), 1, number).problems == []


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.long)])
def test_many_schedules_hold(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--schedules", str(count), "--seed", "2"])
    assert status == 0, capsys.readouterr().out


def test_a_schedule_plays_the_same_twice() -> None:
    for number in range(10):
        events = schedules.drawn(3, number)
        assert events == schedules.drawn(3, number)
        first, second = schedules.play(events, 3, number), schedules.play(events, 3, number)
        assert (first.trace, first.outcomes) == (second.trace, second.outcomes)


def test_other_threads_keep_the_real_time() -> None:
    """An event loop there that waits by the virtual time would not be back for an hour."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.001)

        ticking = asyncio.run_coroutine_threadsafe(tick(), loop)
        for number in range(5):
            schedules.play(schedules.drawn(4, number), 4, number)
        seen = len(ticks)
        deadline = time.monotonic() + PATIENCE
        while len(ticks) == seen and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(ticks) > seen > 1
        assert ticks == sorted(ticks)
        ticking.cancel()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def found(numbers: range) -> str:
    """What is wrong with these schedules."""
    problems = (schedules.play(schedules.drawn(1, number), 1, number).problems for number in numbers)
    return "\n".join(each for of_one in problems for each in of_one)


def test_finds_a_stream_whose_sender_counts_as_done_with_its_first_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was before the campaign."""
    receive = RequestTable.receive_stream

    def by_first_message(self: RequestTable, *args: Any, ends: bool = False) -> Any:
        return receive(self, *args, ends=True)

    monkeypatch.setattr(RequestTable, "receive_stream", by_first_message)
    assert "late: " in found(range(273, 274))


def test_finds_credit_that_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PutLedger, "revoke", lambda self, key: 0)
    assert "has credit taken" in found(range(60))


def test_finds_a_request_whose_end_takes_back_what_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: wire ids may have colons, and what begins with an id and a colon is that request's."""
    monkeypatch.setattr(WireIds, "new", lambda self, request_id: request_id)
    monkeypatch.setattr(put_ledger, "is_of", lambda key, ended: f"{key}:".startswith(f"{ended}:"))
    assert found(range(214, 215)).startswith("r9: 'unavailable: relay read failed: RelayReadError")


def test_finds_requests_of_a_dead_stage_that_nobody_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Coordinator, "stage_down", lambda self, names, reason: self.replicas.mark_down(names, reason)
    )
    assert "late: " in found(range(60))


def test_finds_what_an_aborted_request_leaves_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AggregatedInput, "cancel", lambda self, request_id: None)
    assert "waits for parts of" in found(range(60))
