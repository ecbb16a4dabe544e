"""SimpleScheduler: single calls, batches, concurrency, failures and aborts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from scheduler_runs import WAIT_S, running

from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


def put(scheduler: SimpleScheduler, *items: Any) -> None:
    for index, data in enumerate(items):
        scheduler.inbox.put(IncomingMessage(f"r{index}", "new_request", data))


def take(scheduler: SimpleScheduler, count: int) -> dict[str, OutgoingMessage]:
    outs = [scheduler.outbox.get(timeout=WAIT_S) for _ in range(count)]
    return {out.request_id: out for out in outs}


def batching(seen: list[Any], **options: Any) -> SimpleScheduler:
    """Notes batches, and single requests; gives ten times its inputs."""

    def note(work: Any) -> Any:
        seen.append(work)
        return [item * 10 for item in work] if isinstance(work, list) else work * 10

    return SimpleScheduler(note, batch_compute_fn=note, **options)


def test_each_request_gets_its_result_in_order() -> None:
    with running(SimpleScheduler(lambda x: x + 1)) as scheduler:
        put(scheduler, 1, 2, 3)
        outs = [scheduler.outbox.get(timeout=WAIT_S) for _ in range(3)]
    assert [(out.request_id, out.type, out.data) for out in outs] == [
        ("r0", "result", 2),
        ("r1", "result", 3),
        ("r2", "result", 4),
    ]


def test_async_functions_and_awaitables_are_awaited() -> None:
    async def compute(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    async def compute_batch(xs: list[int]) -> list[int]:
        return [x * 3 for x in xs]

    with running(SimpleScheduler(lambda x: compute(x))) as scheduler:
        put(scheduler, 4)
        assert take(scheduler, 1)["r0"].data == 8
    batching = SimpleScheduler(compute, batch_compute_fn=compute_batch, max_batch_size=2)
    put(batching, 1, 2)
    with running(batching):
        assert {key: out.data for key, out in take(batching, 2).items()} == {"r0": 3, "r1": 6}


def test_an_exception_is_the_error_of_its_request_alone() -> None:
    def compute(x: int) -> int:
        if x == 0:
            raise KeyError("zero")
        return x

    with running(SimpleScheduler(compute)) as scheduler:
        put(scheduler, 0, 1)
        outs = take(scheduler, 2)
    assert outs["r0"].type == "error"
    assert isinstance(outs["r0"].data, KeyError)
    assert outs["r1"].data == 1


def test_a_batch_takes_what_waits_up_to_its_size() -> None:
    seen: list[list[int]] = []
    scheduler = batching(seen, max_batch_size=3)
    put(scheduler, 1, 2, 3, 4, 5)
    with running(scheduler):
        outs = take(scheduler, 5)
    assert seen == [[1, 2, 3], [4, 5]]
    assert outs["r4"].data == 50


def test_a_batch_waits_for_later_requests() -> None:
    seen: list[list[int]] = []
    with running(batching(seen, max_batch_size=2, max_batch_wait_ms=200_000)) as scheduler:
        put(scheduler, 1)
        scheduler.inbox.put(IncomingMessage("late", "new_request", 2))
        take(scheduler, 2)
    assert seen == [[1, 2]]


def test_a_batch_stays_within_its_cost_and_a_costly_request_runs_alone() -> None:
    seen: list[list[int]] = []
    scheduler = batching(seen, max_batch_size=8, request_cost_fn=lambda x: x, max_batch_cost=5)
    put(scheduler, 2, 3, 1, 9, 1, 1)
    with running(scheduler):
        take(scheduler, 6)
    assert seen == [[2, 3], 1, 9, [1, 1]]


def test_a_failing_cost_function_fails_its_request_alone() -> None:
    scheduler = batching([], max_batch_size=4, request_cost_fn=lambda x: 1 / x, max_batch_cost=5)
    put(scheduler, 1, 0, 2)
    with running(scheduler):
        outs = take(scheduler, 3)
    assert isinstance(outs["r1"].data, ZeroDivisionError)
    assert (outs["r0"].data, outs["r2"].data) == (10, 20)


def test_an_exception_in_a_result_slot_fails_that_request_alone() -> None:
    scheduler = SimpleScheduler(
        lambda x: x, batch_compute_fn=lambda xs: [xs[0], ValueError("no")], max_batch_size=2
    )
    put(scheduler, 1, 2)
    with running(scheduler):
        outs = take(scheduler, 2)
    assert outs["r0"].type == "result"
    assert isinstance(outs["r1"].data, ValueError)


@pytest.mark.parametrize("results", [[1], [1, 2, 3]])
def test_a_batch_result_of_the_wrong_length_fails_each_request(results: list[int]) -> None:
    scheduler = SimpleScheduler(lambda x: x, batch_compute_fn=lambda xs: results, max_batch_size=2)
    put(scheduler, 1, 2)
    with running(scheduler):
        outs = take(scheduler, 2)
    for out in outs.values():
        assert out.type == "error"
        assert f"returned {len(results)} results for 2 requests" in str(out.data)


def test_an_exception_of_the_batch_fails_each_request_and_work_goes_on() -> None:
    def explode(xs: list[int]) -> list[int]:
        raise RuntimeError("batch")

    scheduler = SimpleScheduler(lambda x: x, batch_compute_fn=explode, max_batch_size=2)
    put(scheduler, 1, 2, 3)
    with running(scheduler):
        outs = take(scheduler, 3)
    assert [outs[f"r{i}"].type for i in range(3)] == ["error", "error", "result"]


def test_requests_run_at_once_up_to_max_concurrency() -> None:
    together = threading.Barrier(3, timeout=WAIT_S)

    def compute(x: int) -> int:
        together.wait()  # Passes only if three requests are inside at the same time.
        return x

    with running(SimpleScheduler(compute, max_concurrency=3)) as scheduler:
        put(scheduler, 1, 2, 3)
        assert {out.data for out in take(scheduler, 3).values()} == {1, 2, 3}


def test_concurrency_and_batches_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="mutually exclusive"):
        SimpleScheduler(lambda x: x, batch_compute_fn=lambda xs: xs, max_concurrency=2)


@pytest.mark.parametrize("option", [{"max_batch_size": 0}, {"max_concurrency": 0}, {"max_batch_wait_ms": -1}])
def test_limits_below_their_least_value_are_refused(option: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        SimpleScheduler(lambda x: x, **option)


def test_an_aborted_request_never_runs_while_it_waits() -> None:
    entered, go = threading.Event(), threading.Event()
    ran: list[str] = []
    aborted: list[str] = []

    def compute(x: str) -> str:
        ran.append(x)
        entered.set()
        go.wait(WAIT_S)
        return x

    with running(SimpleScheduler(compute, abort_callback=aborted.append)) as scheduler:
        put(scheduler, "a", "b", "c")
        assert entered.wait(WAIT_S)
        scheduler.abort("r0")  # Is running: its result is dropped.
        scheduler.abort("r1")  # Is waiting: it never runs.
        go.set()
        out = scheduler.outbox.get(timeout=WAIT_S)
    assert (out.request_id, out.data) == ("r2", "c")
    assert ran == ["a", "c"]
    assert aborted == ["r0", "r1"]


def test_an_abort_cancels_a_running_coroutine() -> None:
    entered, ended = threading.Event(), threading.Event()

    async def compute(x: str) -> str:
        if x == "quick":
            return x
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return x

    with running(SimpleScheduler(compute)) as scheduler:
        put(scheduler, "slow", "quick")
        assert entered.wait(WAIT_S)
        scheduler.abort("r0")
        out = scheduler.outbox.get(timeout=WAIT_S)
    assert ended.is_set()
    assert (out.request_id, out.data) == ("r1", "quick")


def test_an_abort_before_the_coroutine_begins_cancels_it_too() -> None:
    entered, go = threading.Event(), threading.Event()

    def compute(x: str) -> Any:
        if x == "quick":
            return x
        entered.set()
        go.wait(WAIT_S)
        return asyncio.sleep(60)

    with running(SimpleScheduler(compute)) as scheduler:
        put(scheduler, "slow", "quick")
        assert entered.wait(WAIT_S)
        scheduler.abort("r0")
        go.set()
        assert scheduler.outbox.get(timeout=WAIT_S).data == "quick"


def test_a_failing_abort_callback_does_not_reach_the_caller() -> None:
    def callback(request_id: str) -> None:
        raise RuntimeError(request_id)

    with running(SimpleScheduler(lambda x: x, abort_callback=callback)) as scheduler:
        scheduler.abort("r9")
        put(scheduler, 1)
        assert take(scheduler, 1)["r0"].data == 1


def test_a_stream_chunk_is_an_error_that_says_what_to_do() -> None:
    with running(SimpleScheduler(lambda x: x)) as scheduler:
        scheduler.inbox.put(IncomingMessage("r0", "stream_chunk", object()))
        scheduler.inbox.put(IncomingMessage("r0", "stream_done"))
        out = scheduler.outbox.get(timeout=WAIT_S)
    assert out.type == "error"
    assert "stream_to" in str(out.data)
    assert scheduler.outbox.empty()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_what_is_no_exception_of_a_request_ends_start(concurrency: int) -> None:
    def compute(x: int) -> int:
        raise SystemExit(3)

    scheduler = SimpleScheduler(compute, max_concurrency=concurrency)
    put(scheduler, 1)
    with pytest.raises(SystemExit):
        scheduler.start()


def test_it_says_how_many_requests_run_and_how_many_wait() -> None:
    entered, leave = threading.Semaphore(0), threading.Semaphore(0)

    def compute(items: list[int]) -> list[int]:
        entered.release()
        leave.acquire(timeout=WAIT_S)
        return items

    scheduler = SimpleScheduler(lambda item: compute([item])[0], batch_compute_fn=compute, max_batch_size=3)
    put(scheduler, *range(4))
    with running(scheduler):
        assert entered.acquire(timeout=WAIT_S)
        assert scheduler.stats() == {"num_running_reqs": 3, "max_running_reqs": 3, "num_queue_reqs": 1}
        leave.release()
        assert entered.acquire(timeout=WAIT_S)
        assert scheduler.stats() == {"num_running_reqs": 1, "max_running_reqs": 3, "num_queue_reqs": 0}
        leave.release()
        take(scheduler, 4)
    assert scheduler.stats()["num_running_reqs"] == 0
