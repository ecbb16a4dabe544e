"""The in-flight counts: they find the requests that a dead process held, whatever the order of reports."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from waiting import until

from sglang_omni.pipeline.coordinator.requests import InFlightCounts
from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR
from sglang_omni.pipeline.stage.requests import ProgressReporter, RequestTable
from sglang_omni.proto import ProgressMessage

# A diamond with a stream: entry -> (left, right) -> join -> coordinator, and left streams to join.
ROUTE: dict[str, list[str | None]] = {
    "entry": ["left", "right"],
    "left": ["join", "join"],  # The payload and the stream: two hand-offs.
    "right": ["join"],
    "join": [None],
}


class Reports:
    """Every stage's reports of one request, in the order they were made."""

    def __init__(self) -> None:
        self.reports: list[ProgressMessage] = []
        self.reporters = {name: ProgressReporter(name, self.reports.append) for name in ROUTE}

    def run(self) -> None:
        received = dict.fromkeys(ROUTE, 0)
        sources: list[tuple[str | None, str]] = [(None, "entry")]
        while sources:
            source, stage = sources.pop(0)
            self.reporters[stage].received("r", source)
            received[stage] += 1
            if stage == "join" and received[stage] < 3:
                continue
            for target in ROUTE[stage]:
                self.reporters[stage].handed_on("r", target)
                if target is not None:
                    sources.append((stage, target))
            self.reporters[stage].finished("r", received[stage], work=0.5, wait=0.25)
            self.reporters[stage].flush()


@pytest.mark.parametrize("seed", range(20))
async def test_the_sums_settle_whatever_the_order_of_reports(seed: int) -> None:
    pipeline = Reports()
    pipeline.run()
    counters = InFlightCounts()
    counters.track("r")
    changes = [change for report in pipeline.reports for change in report.changes]
    changes += [("r", "entry", 1), ("r", "join", -1)]  # What the coordinator counts itself.
    random.Random(seed).shuffle(changes)
    for change in changes:
        counters.add(*change)
    assert counters.is_settled("r")
    assert counters.holders("r") == []
    assert [report.spans for report in pipeline.reports] == [[("r", 0.5, 0.25, 0.0)]] * 4


async def test_both_ends_of_a_hand_off_hold_it_until_it_is_received() -> None:
    counters = InFlightCounts()
    counters.track("r")
    counters.add("r", "a", 1)

    def count(message: ProgressMessage) -> None:
        for change in message.changes:
            counters.add(*change)

    a, b = ProgressReporter("a", count), ProgressReporter("b", count)
    a.received("r", None)
    a.handed_on("r", "b")
    a.finished("r", 1)
    a.flush()
    assert sorted(counters.holders("r")) == ["a", "b"]  # The message may be in either process.
    b.received("r", "a")
    b.flush()
    assert counters.holders("r") == ["b"]


async def test_both_ends_hold_the_request_though_the_senders_report_died_with_it() -> None:
    """It may have had more to send than what came, to others, too."""
    counters = InFlightCounts()
    counters.track("r")
    counters.add("r", "a", 1)

    def count(message: ProgressMessage) -> None:
        for change in message.changes:
            counters.add(*change, message.from_stage)

    a, b = ProgressReporter("a", count), ProgressReporter("b", count)
    b.received("r", "a")
    b.flush()
    assert counters.held_by(["a"]) == counters.held_by(["b"]) == ["r"]
    a.received("r", None)
    a.handed_on("r", "b")
    a.finished("r", 1, 0.5)
    a.flush()
    assert counters.held_by(["a"]) == ["r"]
    counters.end_visit("r", "a")
    assert counters.held_by(["a"]) == []
    assert counters.held_by(["b"]) == ["r"]


def test_only_tracked_requests_are_counted() -> None:
    counters = InFlightCounts()
    assert counters.add("ghost", "a", 1) == 0
    assert counters.held_by(["a"]) == []
    counters.track("r")
    assert counters.add("r", "a", 1) == 1
    assert counters.held_by(["a", "b"]) == ["r"]
    counters.forget("r")
    assert counters.held_by(["a"]) == []


@pytest.mark.parametrize("ends", [True, False])
async def test_a_stream_counts_once_however_many_chunks_it_has_and_late_ones_settle(ends: bool) -> None:
    """Its sender holds the request until the stream has ended, or its receiver needs no more of it."""
    counters = InFlightCounts()
    counters.track("r")
    counters.add("r", "up", 2)
    table = RequestTable(ProgressReporter("s", lambda m: [counters.add(*c) for c in m.changes] and None))
    table.receive_payload("r", "up")
    for _ in range(3):
        assert table.receive_stream("r", "up") is not None
    table._progress.flush()
    assert counters.add("r", "s", 0) == 2
    assert counters.add("r", "up", 0) == 1
    if ends:
        assert table.receive_stream("r", "up", ends=True) is not None
        table._progress.flush()
        assert counters.add("r", "up", 0) == 0
    counters.add("r", "s", 2)  # What "up" counted when it handed the payload and the stream on.
    table.finish("r")
    counters.add("r", "late", 1)  # Another stage's stream comes only now: counted by it, as above,
    counters.add("r", "s", 1)
    for _ in range(2):
        assert table.receive_stream("r", "late") is None
    table._progress.flush()
    assert counters.is_settled("r")


@pytest.mark.parametrize("heard", ["all", "a part", "nothing"])
async def test_a_stream_of_the_coordinator_settles_with_what_the_coordinator_counts(heard: str) -> None:
    """Input that the caller adds; it may go on, or begin, when its request has ended."""
    reports: list[ProgressMessage] = []
    table = RequestTable(ProgressReporter("ears", reports.append))
    counters = InFlightCounts()
    counters.track("r")
    counters.add("r", "ears", 1)
    assert counters.holders("r") == ["ears"]
    counters.add("r", "ears", 1)
    table.receive_payload("r", None)
    if heard != "nothing":
        table.receive_stream("r", COORDINATOR)
        table.receive_stream("r", COORDINATOR, ends=heard == "all")
    table.finish("r")
    assert table.receive_stream("r", COORDINATOR) is None
    table.flush_progress()
    for report in reports:
        for change in report.changes:
            counters.add(*change, report.from_stage)
    assert counters.is_settled("r")


@pytest.mark.parametrize("target", ["coordinator", "next"])
async def test_a_stage_that_has_streamed_to_the_caller_reports_its_end_at_once(target: str) -> None:
    """The answer waits for it. Other reports wait for more."""
    reports: list[ProgressMessage] = []
    table = RequestTable(ProgressReporter("s", reports.append))
    record = table.receive_payload("r", None)
    record.chunks_sent[target] = 1
    table.finish("r")
    assert len(reports) == (target == "coordinator")
    await until(lambda: bool(reports))
    assert reports[0].spans[0][0] == "r"


async def test_a_report_that_was_kept_from_leaving_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("sglang_omni.pipeline.stage.requests.time", SimpleNamespace(monotonic=lambda: now))
    reports: list[ProgressMessage] = []
    reporter = ProgressReporter("s", reports.append)
    reporter.handed_on("a", "next")
    now += 2.0
    reporter.handed_on("b", "next")
    reporter.flush()
    reporter.handed_on("c", "next")
    reporter.flush()
    assert [report.late_s for report in reports] == [2.0, 0.0]


async def test_reports_are_batched_and_opposite_changes_cancel() -> None:
    reports: list[ProgressMessage] = []
    reporter = ProgressReporter("s", reports.append)
    reporter.received("a", None)
    reporter.handed_on("a", None)
    reporter.finished("a", 1, work=1.0)
    reporter.received("b", "up")
    assert reports == []
    await until(lambda: bool(reports))
    assert len(reports) == 1
    assert reports[0].changes == [("b", "s", 1), ("b", "up", -1)]
    assert reports[0].spans == [("a", 1.0, 0.0, 0.0)]
    reporter.flush()
    assert len(reports) == 1
