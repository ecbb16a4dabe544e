"""WorkerPool: spreading requests over the workers of a stage."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import pytest
from scheduler_runs import running

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling import worker_pool
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.worker_pool import WorkerPool


class Recorder:
    """A scheduler that only notes what it is told."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()
        self.aborted: list[str] = []

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def received(self) -> list[tuple[str, str]]:
        messages = [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]
        return [(message.request_id, message.type) for message in messages]


def request(request_id: str, session: str | None = None) -> IncomingMessage:
    metadata: dict[str, Any] = {"session_id": session} if session else {}
    payload = StagePayload(request_id, OmniRequest(None, metadata=metadata), None)
    return IncomingMessage(request_id, "new_request", payload)


def test_requests_go_round_robin() -> None:
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    for request_id in "abcd":
        pool.inbox.put(request(request_id))
    assert [[r for r, _ in worker.received()] for worker in workers] == [["a", "c"], ["b", "d"]]


def test_all_messages_of_a_request_reach_its_worker() -> None:
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    pool.inbox.put(IncomingMessage("a", "stream_chunk"))
    pool.inbox.put(request("b"))
    pool.inbox.put(request("a"))
    pool.inbox.put(IncomingMessage("a", "stream_done"))
    pool.abort("a")
    assert workers[0].received() == [("a", "stream_chunk"), ("a", "new_request"), ("a", "stream_done")]
    assert workers[1].received() == [("b", "new_request")]
    assert (workers[0].aborted, workers[1].aborted) == (["a"], [])


def test_requests_of_a_session_share_a_worker() -> None:
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    for request_id, session in [("a", "s"), ("b", None), ("c", "s"), ("d", "s")]:
        pool.inbox.put(request(request_id, session))
    assert [r for r, _ in workers[0].received()] == ["a", "c", "d"]


def test_a_finished_request_is_forgotten() -> None:
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    pool.inbox.put(request("a"))
    workers[0].outbox.put(OutgoingMessage("a", "stream"))
    assert pool._of_request.keys() == {"a"}
    workers[0].outbox.put(OutgoingMessage("a", "result"))
    assert not pool._of_request
    assert [pool.outbox.get_nowait().type for _ in range(2)] == ["stream", "result"]


def test_a_request_that_comes_back_meets_the_worker_it_had() -> None:
    workers = [Recorder(), Recorder(), Recorder()]
    pool = WorkerPool(workers)
    for loop in range(3):
        for request_id in "ab":
            pool.inbox.put(request(request_id))
        for worker, request_id in zip(workers, "ab", strict=False):
            assert worker.received() == [(request_id, "new_request")], loop
            worker.outbox.put(OutgoingMessage(request_id, "result"))
    # One that comes back, and is then aborted, ends where it is and is forgotten.
    pool.inbox.put(request("a"))
    pool.abort("a")
    assert [worker.aborted for worker in workers] == [["a"], [], []]
    pool.inbox.put(request("a"))
    assert workers[2].received() == [("a", "new_request")]


def test_a_chunk_before_a_request_comes_back_goes_where_the_request_will() -> None:
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    pool.inbox.put(request("a"))
    workers[0].outbox.put(OutgoingMessage("a", "result"))
    pool.inbox.put(IncomingMessage("a", "stream_chunk"))
    assert not pool._of_request, "a chunk that trails behind a result must not be remembered for ever"
    pool.abort("a")
    assert [message for message, _ in workers[0].received()] == ["a", "a"]
    assert workers[0].aborted == ["a"]


def test_a_request_that_came_back_is_bound_more_than_its_session() -> None:
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    pool.inbox.put(request("a", "s"))
    workers[0].outbox.put(OutgoingMessage("a", "result"))
    pool.inbox.put(request("b", "t"))
    pool.inbox.put(request("a", "t"))
    assert [message for message, _ in workers[0].received()] == ["a", "a"]


def test_what_is_remembered_of_finished_requests_and_sessions_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_pool, "_REMEMBERED", 4)
    workers = [Recorder(), Recorder()]
    pool = WorkerPool(workers)
    for number in range(100):
        pool.inbox.put(request(f"r{number}", f"s{number}"))
        pool.outbox.put(OutgoingMessage(f"r{number}", "result"))
    assert not pool._of_request
    assert [*pool._of_finished] == [f"r{number}" for number in range(96, 100)]
    assert [*pool._of_session] == [hash(f"s{number}") for number in range(96, 100)]


def test_the_caches_of_all_workers_are_flushed() -> None:
    flushed = []

    class Cached(Recorder):
        def flush_cache(self) -> None:
            flushed.append(self)

    workers = [Cached(), Cached()]
    WorkerPool([*workers, Recorder()]).flush_cache()
    assert flushed == workers


def test_workers_run_side_by_side_and_answer_through_one_outbox() -> None:
    together = threading.Barrier(2, timeout=60)

    def compute(payload: StagePayload) -> str:
        together.wait()
        return payload.request_id

    with running(WorkerPool([SimpleScheduler(compute), SimpleScheduler(compute)])) as pool:
        pool.inbox.put(request("a"))
        pool.inbox.put(request("b"))
        assert {pool.outbox.get(timeout=60).data for _ in range(2)} == {"a", "b"}


def test_a_crashed_worker_stops_the_others_and_is_raised() -> None:
    class Crashing(Recorder):
        def start(self) -> None:
            raise MemoryError("worker")

    with pytest.raises(MemoryError, match="worker"):
        WorkerPool([SimpleScheduler(lambda x: x), Crashing()]).start()


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="at least one"):
        WorkerPool([])
