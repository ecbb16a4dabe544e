"""When a stage's numbers are sent: on change, and once more after things have settled."""

from __future__ import annotations

from typing import Any

import pytest
from stage_harness import HandScheduler, harness, payload
from waiting import until

from sglang_omni.pipeline.stage import stats as stats_module
from sglang_omni.pipeline.stage.edges.edge import Payload
from sglang_omni.pipeline.stage.stats import StatsReporter
from sglang_omni.proto import StatsMessage
from sglang_omni.scheduling.worker_pool import WorkerPool


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "_INTERVAL_S", 0.002)


class Counted:
    """A scheduler or relay whose numbers a test sets, and which counts how often it is asked."""

    def __init__(self, **numbers: float) -> None:
        self.numbers = numbers
        self.asked = 0

    def stats(self) -> dict[str, float]:
        self.asked += 1
        return dict(self.numbers)

    usage = stats


@pytest.fixture
def source() -> Counted:
    return Counted(num_running_reqs=0)


def reporter(source: Any, *relays: Any) -> tuple[StatsReporter, list[StatsMessage]]:
    sent: list[StatsMessage] = []
    return StatsReporter("s", source, relays, sent.append), sent


async def test_numbers_are_sent_when_they_change_and_not_looked_at_for_ever(source: Counted) -> None:
    one, sent = reporter(source, Counted(relay_held_bytes=0))
    one.touch()
    await until(lambda: one._timer is None)
    assert sent == [StatsMessage("s", {"num_running_reqs": 0, "relay_held_bytes": 0})]

    asked = source.asked
    one.touch()
    await until(lambda: one._timer is None)
    assert len(sent) == 1
    assert source.asked == asked + stats_module._QUIET_LOOKS


async def test_as_long_as_something_is_held_its_end_is_seen_without_being_reported(source: Counted) -> None:
    relay = Counted(relay_held_bytes=64)
    one, sent = reporter(source, relay)
    one.touch()
    await until(lambda: source.asked > 3 * stats_module._QUIET_LOOKS)
    assert len(sent) == 1

    relay.numbers["relay_held_bytes"] = 0
    await until(lambda: one._timer is None)
    assert [message.stats["relay_held_bytes"] for message in sent] == [64, 0]


async def test_a_closed_reporter_asks_nobody(source: Counted) -> None:
    source.numbers["num_running_reqs"] = 1
    one, _ = reporter(source)
    one.touch()
    await until(lambda: source.asked > 0)
    one.close()
    asked = source.asked
    one.touch()
    assert one._timer is None or one._timer.cancelled()
    assert source.asked == asked


async def test_a_stage_reports_after_work_results_and_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = HandScheduler()
    source = Counted(num_running_reqs=0)
    scheduler.stats = source.stats
    sent: list[dict[str, float]] = []

    async with harness(scheduler=scheduler) as one:
        monkeypatch.setattr(one.stage.control_plane, "send_stats", record(sent))
        source.numbers["num_running_reqs"] = 1
        one.submit("r")
        await until(lambda: bool(sent) and sent[-1]["num_running_reqs"] == 1)
        source.numbers["num_running_reqs"] = 0
        one.stage.abort("r")
        await until(lambda: sent[-1]["num_running_reqs"] == 0)


async def test_a_stage_reports_what_comes_from_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = HandScheduler()
    source = Counted(num_running_reqs=0)
    scheduler.stats = source.stats
    sent: list[dict[str, float]] = []

    async with harness(scheduler=scheduler) as one:
        monkeypatch.setattr(one.stage.control_plane, "send_stats", record(sent))
        # What it reports as it begins is not meant here.
        await until(lambda: one.stage._stats._timer is None)
        source.numbers["num_running_reqs"] = 1
        await one.stage.receive(Payload("r", "up", payload("r")))
        await until(lambda: bool(sent) and sent[-1]["num_running_reqs"] == 1)


def record(sent: list[dict[str, float]]) -> Any:
    async def send(message: StatsMessage) -> None:
        sent.append(message.stats)

    return send


def test_a_pool_adds_up_its_workers() -> None:
    workers = [HandScheduler(), HandScheduler(), HandScheduler()]
    workers[0].stats = Counted(num_running_reqs=1, max_batch_size=3).stats
    workers[1].stats = Counted(num_running_reqs=2, max_batch_size=2).stats

    assert WorkerPool(workers).stats() == {"num_running_reqs": 3, "max_batch_size": 3}
