"""The scheduler of sessions: order, interleaving, aborts, failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty
from typing import Any

import pytest
from scheduler_runs import running

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession

WAIT_S = 60


@dataclass
class Item:
    """The field of a stream item that schedulers read."""

    data: Any


class Echo(StreamSession):
    """Yields its input in the given pieces; its result is all of it."""

    gate = threading.Event()
    at_gate = threading.Event()

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        return self.feed(payload.data)

    def feed(self, data: Any) -> Iterator[Any]:
        for piece in data:
            if piece == "fail":
                raise ValueError("told to fail")
            if piece == "wait":
                Echo.at_gate.set()
                Echo.gate.wait(WAIT_S)
            self.seen.append(piece)
            yield piece

    def end(self) -> Iterator[Any]:
        yield "end"

    def result(self) -> Any:
        if "bad result" in self.seen:
            raise ValueError("no result")
        return self.seen


class Driver:
    """A scheduler in its thread, as a stage runs it."""

    def __init__(self) -> None:
        Echo.gate.clear()
        Echo.at_gate.clear()
        self.scheduler = StreamScheduler(
            Echo,
            expects_stream=lambda payload: payload.request.params.get("streamed", False),
            wants_chunks=lambda payload: payload.request.params.get("chunks", True),
        )

    def new(self, request_id: str, data: list[Any], **params: bool) -> None:
        payload = StagePayload(request_id, OmniRequest(None, params), data)
        self.scheduler.inbox.put(IncomingMessage(request_id, "new_request", payload))

    def feed(self, request_id: str, *data: Any) -> None:
        self.scheduler.inbox.put(IncomingMessage(request_id, "stream_chunk", Item(list(data))))

    def done(self, request_id: str) -> None:
        self.scheduler.inbox.put(IncomingMessage(request_id, "stream_done"))

    def next(self) -> OutgoingMessage:
        return self.scheduler.outbox.get(timeout=WAIT_S)

    def chunks(self, count: int) -> list[tuple[str, Any]]:
        return [(message.request_id, message.data) for message in (self.next() for _ in range(count))]

    def nothing_more(self) -> bool:
        """True if the outbox is empty once all earlier messages are served."""
        self.new("last", [], chunks=False)
        assert self.next().request_id == "last"
        return self.scheduler.outbox.empty()


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    with running(driver.scheduler):
        yield driver
        Echo.gate.set()


def test_a_request_without_a_stream(driver: Driver) -> None:
    driver.new("r", [1, 2])

    assert driver.chunks(3) == [("r", 1), ("r", 2), ("r", "end")]
    result = driver.next()
    assert result.type == "result"
    assert result.data.data == [1, 2]
    assert result.data.request_id == "r"


def test_a_streamed_request_ends_with_its_stream(driver: Driver) -> None:
    driver.new("r", [1], streamed=True)
    driver.feed("r", 2, 3)
    assert driver.chunks(3) == [("r", 1), ("r", 2), ("r", 3)]
    with pytest.raises(Empty):
        driver.scheduler.outbox.get(timeout=0.05)

    driver.done("r")

    assert driver.chunks(1) == [("r", "end")]
    assert driver.next().data.data == [1, 2, 3]


@pytest.mark.parametrize("early", ["chunks", "chunks and end"])
def test_a_stream_may_come_before_its_payload(driver: Driver, early: str) -> None:
    driver.feed("r", 2)
    driver.feed("r", 3)
    if early == "chunks and end":
        driver.done("r")
    driver.new("r", [1], streamed=True)
    if early == "chunks":
        driver.done("r")

    assert driver.chunks(4) == [("r", 1), ("r", 2), ("r", 3), ("r", "end")]
    assert driver.next().data.data == [1, 2, 3]


def test_a_session_knows_how_much_waits() -> None:
    waited: list[int] = []

    class Counting(Echo):
        def feed(self, data: Any) -> Iterator[Any]:
            waited.append(self.num_waiting)
            return super().feed(data)

    driver = Driver()
    driver.scheduler = StreamScheduler(
        Counting, expects_stream=lambda payload: True, wants_chunks=lambda payload: True
    )
    driver.new("r", ["wait"])
    with running(driver.scheduler):
        assert Echo.at_gate.wait(WAIT_S)
        driver.feed("r", 1)
        driver.feed("r", 2)
        driver.done("r")
        Echo.gate.set()
        assert driver.chunks(4) == [("r", "wait"), ("r", 1), ("r", 2), ("r", "end")]
    assert waited == [0, 2, 1]


def test_a_bound_on_the_requests_in_work() -> None:
    """Others wait in line with their streams, and begin in order as soon as one ends in whatever way."""
    Echo.gate.clear()
    Echo.at_gate.clear()
    opened: list[Echo] = []
    closed: list[Echo] = []

    class Counted(Echo):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

        def close(self) -> None:
            closed.append(self)

    driver = Driver()
    driver.scheduler = StreamScheduler(
        Counted,
        expects_stream=lambda payload: payload.request.params.get("streamed", False),
        wants_chunks=lambda _: False,
        max_running=2,
    )
    driver.new("gate", ["wait"])
    for name, data in (("long", [1]), ("fails", ["fail"]), ("aborted", []), ("last", [2])):
        driver.new(name, data, streamed=name == "long")
    with running(driver.scheduler):
        assert Echo.at_gate.wait(WAIT_S)
        driver.scheduler.abort("aborted")
        Echo.gate.set()
        answers = [driver.next() for _ in range(3)]
        assert [(each.request_id, each.type) for each in answers] == [
            ("gate", "result"),
            ("fails", "error"),
            ("last", "result"),
        ]
        assert (len(opened), len(closed)) == (4, 3)
        driver.done("long")
        assert driver.next().data.data == [1]
    assert {id(each) for each in opened} == {id(each) for each in closed}
    with pytest.raises(ValueError, match="at least 1"):
        StreamScheduler(Echo, expects_stream=bool, wants_chunks=bool, max_running=0)


def test_requests_take_turns(driver: Driver) -> None:
    driver.new("gate", ["wait"])
    driver.new("a", [1, 2, 3])
    driver.new("b", [1, 2, 3])
    Echo.gate.set()
    order = []
    while len(order) < 8:
        message = driver.next()
        if message.type == "stream" and message.request_id != "gate":
            order.append(message.request_id)

    assert order == ["a", "b"] * 4


def test_chunks_are_held_back_from_who_does_not_want_them(driver: Driver) -> None:
    driver.new("r", [1, 2], chunks=False)

    message = driver.next()
    assert message.type == "result"
    assert message.data.data == [1, 2]


def test_none_is_no_chunk(driver: Driver) -> None:
    driver.new("r", [None, 1])

    assert driver.chunks(2) == [("r", 1), ("r", "end")]


def test_an_aborted_request_gives_nothing_more(driver: Driver) -> None:
    driver.new("r", [1, "wait", 2], streamed=True)
    assert driver.chunks(1) == [("r", 1)]
    assert Echo.at_gate.wait(WAIT_S)
    driver.scheduler.abort("r")
    driver.feed("r", 3)
    driver.done("r")
    Echo.gate.set()

    # The running step goes on to its next chunk.
    assert driver.chunks(1) == [("r", "wait")]
    assert driver.nothing_more()
    assert not driver.scheduler._requests


def test_an_abort_stands_behind_what_came_before_it(driver: Driver) -> None:
    driver.new("busy", ["wait"], chunks=False)
    assert Echo.at_gate.wait(WAIT_S)
    driver.scheduler.abort("another")
    driver.new("r", [1], streamed=True)
    driver.scheduler.abort("r")
    Echo.gate.set()

    assert driver.next().request_id == "busy"
    assert driver.nothing_more()
    assert not driver.scheduler._requests


def test_an_aborted_id_can_be_used_again(driver: Driver) -> None:
    driver.scheduler.abort("r")
    driver.new("r", [1], streamed=True)
    driver.feed("r", 2)
    driver.done("r")

    assert driver.chunks(3) == [("r", 1), ("r", 2), ("r", "end")]
    assert driver.next().type == "result"


@pytest.mark.parametrize("data", [[1, "fail", 2], [1, "bad result"]])
def test_a_failure_is_its_requests_error_alone(driver: Driver, data: list[Any]) -> None:
    driver.new("bad", data, chunks=False, streamed=True)
    driver.done("bad")
    driver.new("good", [1], chunks=False)

    messages = {message.request_id: message for message in (driver.next(), driver.next())}
    assert messages["bad"].type == "error"
    assert isinstance(messages["bad"].data, ValueError)
    assert messages["good"].data.data == [1]


def test_a_failed_requests_stream_is_forgotten(driver: Driver) -> None:
    driver.new("bad", ["fail"], streamed=True)
    assert driver.next().type == "error"
    driver.feed("bad", 1)
    driver.done("bad")

    assert driver.nothing_more()
    assert not driver.scheduler._requests


def test_finished_requests_leave_nothing_behind(driver: Driver) -> None:
    for index in range(50):
        driver.new(f"r{index}", [1], chunks=False)
    for _ in range(50):
        assert driver.next().type == "result"

    assert driver.nothing_more()
    assert not driver.scheduler._requests


def test_a_session_that_takes_no_stream_says_so(driver: Driver) -> None:
    class Whole(Echo):
        feed = StreamSession.feed

        def begin(self, payload: StagePayload) -> Iterator[Any]:
            return iter(())

    driver.scheduler._open_session = Whole
    driver.new("r", [], streamed=True)
    driver.feed("r", 1)

    error = driver.next()
    assert error.type == "error"
    assert "takes no stream" in str(error.data)


def test_it_says_how_many_requests_are_in_a_step_and_how_many_wait(driver: Driver) -> None:
    assert driver.scheduler.stats() == {"num_running_reqs": 0, "num_queue_reqs": 0}
    driver.new("r", ["wait", 1, "wait"])
    assert Echo.at_gate.wait(WAIT_S)
    driver.new("s", [1, 2])
    driver.new("t", [1, 2])
    Echo.at_gate.clear()
    Echo.gate.set()
    Echo.gate.clear()
    assert Echo.at_gate.wait(WAIT_S)
    assert driver.scheduler.stats() == {"num_running_reqs": 1, "num_queue_reqs": 2}


@pytest.mark.parametrize("data", [[], ["fail"]])
def test_a_session_that_cannot_be_closed_keeps_no_place(
    data: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Unclosable(Echo):
        def close(self) -> None:
            raise OSError("cannot be closed")

    driver = Driver()
    driver.scheduler = StreamScheduler(
        Unclosable, expects_stream=lambda _: False, wants_chunks=lambda _: False, max_running=1
    )
    for name in "ab":
        driver.new(name, data)
    with running(driver.scheduler):
        assert [driver.next().request_id for _ in "ab"] == ["a", "b"]
    assert "closing the session of request a failed" in caplog.text
    assert "cannot be closed" in caplog.text
