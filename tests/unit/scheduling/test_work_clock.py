"""The time that schedulers work on a request, apart from the time that it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_runs import running

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import BatchItem, StreamScheduler, StreamSession
from sglang_omni.scheduling.work_clock import WorkClock
from sglang_omni.scheduling.worker_pool import WorkerPool

WAIT_S = 60


class Hands:
    """A clock that advances only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(time, "perf_counter", lambda: hands.now)
    return hands


def payload(request_id: str, data: Any = None) -> StagePayload:
    return StagePayload(request_id, OmniRequest(None), data)


def work(scheduler: Any, messages: list[IncomingMessage], results: int) -> dict[str, float]:
    """Runs the scheduler on these messages, which have all arrived when it starts."""
    records = {message.request_id: SimpleNamespace(work=0.0) for message in messages}
    scheduler.work_clock.records = records
    for message in messages:
        scheduler.inbox.put(message)
    seconds = {}
    with running(scheduler):
        while len(seconds) < results:
            out: OutgoingMessage = scheduler.outbox.get(timeout=WAIT_S)
            if out.type != "stream":
                # As in a stage: the work is known when the result arrives.
                seconds[out.request_id] = records.pop(out.request_id).work
    return seconds


def new(request_id: str, data: Any) -> IncomingMessage:
    return IncomingMessage(request_id, "new_request", payload(request_id, data))


def test_requests_that_wait_for_one_another(hands: Hands) -> None:
    scheduler = SimpleScheduler(lambda payload: hands.take(payload.data))
    seconds = work(scheduler, [new("a", 1.0), new("b", 2.0), new("c", 4.0)], 3)
    assert seconds == {"a": 1.0, "b": 2.0, "c": 4.0}


def test_a_request_that_fails_has_worked(hands: Hands) -> None:
    def fail(payload: StagePayload) -> None:
        hands.take(3.0)
        raise ValueError

    assert work(SimpleScheduler(fail), [new("a", None)], 1) == {"a": 3.0}


def test_what_is_done_together_is_the_work_of_each(hands: Hands) -> None:
    def together(payloads: list[StagePayload]) -> list[None]:
        hands.take(5.0)
        return [None] * len(payloads)

    scheduler = SimpleScheduler(lambda payload: None, batch_compute_fn=together, max_batch_size=2)
    assert work(scheduler, [new("a", 0), new("b", 0)], 2) == {"a": 5.0, "b": 5.0}


def test_workers_of_a_pool(hands: Hands) -> None:
    pool = WorkerPool([SimpleScheduler(lambda payload: hands.take(payload.data)) for _ in range(2)])
    seconds = work(pool, [new("a", 1.0), new("b", 0.0)], 2)
    assert seconds["a"] >= 1.0
    assert seconds.keys() == {"a", "b"}


class Session(StreamSession):
    """Takes the given time for each piece of its stream; a negative time is spent in a batch."""

    take: Callable[[float], None]

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        return self.feed(payload.data)

    def feed(self, data: Any) -> Iterator[Any]:
        if data < 0:
            yield Item("key", 8, -data)
        else:
            Session.take(data)
            yield None

    def result(self) -> Any:
        return None


class Item(BatchItem):
    def __init__(self, key: str, max_batch_size: int, seconds: float) -> None:
        super().__init__(key, max_batch_size)
        self.seconds = seconds


class Piece:
    def __init__(self, data: float) -> None:
        self.data = data


def test_sessions_that_take_turns(hands: Hands) -> None:
    Session.take = hands.take
    scheduler = StreamScheduler(
        Session,
        expects_stream=lambda payload: True,
        wants_chunks=lambda payload: True,
        batch_compute_fn=lambda items: hands.take(sum(item.seconds for item in items)),
    )
    messages = [
        new("a", 1.0),
        new("b", 2.0),
        IncomingMessage("a", "stream_chunk", Piece(4.0)),
        IncomingMessage("b", "stream_chunk", Piece(-8.0)),
        IncomingMessage("a", "stream_done"),
        IncomingMessage("b", "stream_done"),
    ]
    assert work(scheduler, messages, 2) == {"a": 5.0, "b": 10.0}


def test_only_the_stages_requests_count() -> None:
    clock = WorkClock()
    clock.add("a", 1.0)  # no stage has it
    record = SimpleNamespace(work=0.0)
    records = {"a": record}
    clock.records = records
    clock.add_to_all(("a", "stranger"), 1.0)
    assert (record.work, list(records)) == (1.0, ["a"])
