"""Admission: requests that wait for room in the replicas of a process, or for one that is up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from coordinator_harness import Pipeline, pipelines, soon
from waiting import until

from sglang_omni.pipeline.coordinator.admission import AdmissionQueues
from sglang_omni.pipeline.coordinator.instances import ReplicaTable
from sglang_omni.proto import RequestState, Unavailable

make = pytest.fixture(pipelines)
TERMINALS = frozenset({"text"})


async def with_replicas(make: Any, limit: int | None, **options: Any) -> Pipeline:
    pipeline = await make(terminal_stages=["text"], **options)
    for number in range(2):
        pipeline.coordinator.register_stage(f"audio@r{number}", "", process=f"audio@r{number}")
    pipeline.coordinator.admission.limit("audio", limit, TERMINALS)
    return pipeline


async def names_of(pipeline: Pipeline, count: int) -> list[str]:
    return [(await pipeline.submitted()).request_id for _ in range(count)]


def states(pipeline: Pipeline, *names: str) -> list[RequestState | None]:
    return [pipeline.coordinator.request_state(name) for name in names]


async def test_requests_are_admitted_in_order_as_others_end(make: Any) -> None:
    pipeline = await with_replicas(make, limit=2)
    results = {name: pipeline.submit(name) for name in "abcde"}
    assert await names_of(pipeline, 2) == ["a", "b"]
    assert states(pipeline, *"cde") == [RequestState.PENDING] * 3
    assert pipeline.coordinator.admission.waiting("audio") == 3
    assert pipeline.coordinator.get_load()["pending"] == 3
    for ends, comes in zip("abc", "cde", strict=True):
        await pipeline.complete("text", ends, 1)
        assert await soon(results[ends]) == 1
        # One that comes now goes behind those that wait.
        results[f"after {ends}"] = pipeline.submit(f"after {ends}")
        assert await names_of(pipeline, 1) == [comes]
    pipeline.coordinator.admission.limit("audio", None, TERMINALS)
    assert await names_of(pipeline, 3) == ["after a", "after b", "after c"]
    assert pipeline.coordinator.admission.waiting("audio") == 0
    assert not pipeline.coordinator.admission.must_wait(TERMINALS)


async def test_waiting_requests_go_to_the_replica_that_is_added(make: Any) -> None:
    pipeline = await with_replicas(make, limit=4)
    pipeline.coordinator.stage_down(["audio@r1"], "not there yet")
    for name in "abcdefgh":
        pipeline.submit(name)
    assert await names_of(pipeline, 4) == list("abcd")
    pipeline.coordinator.stage_up(["audio@r1"])
    pipeline.coordinator.admission.limit("audio", None, TERMINALS)
    messages = [await pipeline.submitted() for _ in range(4)]
    assert [message.request_id for message in messages] == list("efgh")
    assert [message.replicas for message in messages] == [{"audio": 1}] * 4


async def test_an_aborted_or_cancelled_request_gives_its_turn_to_the_next(make: Any) -> None:
    pipeline = await with_replicas(make, limit=1)
    results = {name: pipeline.submit(name) for name in "abcd"}
    assert await names_of(pipeline, 1) == ["a"]
    assert await pipeline.coordinator.abort("b")
    results["c"].cancel()
    for name in "bc":
        with pytest.raises(asyncio.CancelledError):
            await soon(results[name])
    assert pipeline.coordinator.admission.waiting("audio") == 1
    # The turn comes and, before its request goes on, that is aborted.
    pipeline.submit("e")
    await until(lambda: pipeline.coordinator.admission.waiting("audio") == 2)
    await pipeline.coordinator.abort("a")
    await pipeline.coordinator.abort("d")
    assert await names_of(pipeline, 1) == ["e"]
    assert pipeline.coordinator.replicas.set_of("audio").requests() == 1


async def test_requests_do_not_wait_for_room_if_no_replica_is_up(make: Any) -> None:
    pipeline = await with_replicas(make, limit=1, stage_down_timeout=0.05)
    pipeline.submit("a")
    waits = pipeline.submit("b")
    assert await names_of(pipeline, 1) == ["a"]
    pipeline.coordinator.stage_down(["audio@r0", "audio@r1"], "killed")
    pipeline.coordinator.admission.limit("audio", 1, TERMINALS)
    with pytest.raises(RuntimeError, match=r"still down after 0.05 s: killed"):
        await soon(waits)


async def test_requests_that_wait_for_a_replica_count_as_waiting(make: Any) -> None:
    pipeline = await with_replicas(make, limit=None)
    admission = pipeline.coordinator.admission
    pipeline.coordinator.stage_down(["audio@r0", "audio@r1"], "killed")
    for name in "abc":
        pipeline.submit(name)
    await until(lambda: admission.waiting("audio") == 3)
    await pipeline.coordinator.abort("b")
    await until(lambda: admission.waiting("audio") == 2)
    pipeline.coordinator.stage_up(["audio@r1"])
    assert await names_of(pipeline, 2) == ["a", "c"]
    assert admission.waiting("audio") == 0


async def test_waiting_requests_fail_with_the_pipeline(make: Any) -> None:
    pipeline = await with_replicas(make, limit=1)
    results = [pipeline.submit(name) for name in "abc"]
    assert await names_of(pipeline, 1) == ["a"]
    await pipeline.coordinator.stop()
    for result in results:
        with pytest.raises(RuntimeError, match="stopped"):
            await soon(result)


async def test_a_full_process_holds_up_requests_that_also_need_another(make: Any) -> None:
    pipeline = await with_replicas(make, limit=None)
    for number in range(2):
        pipeline.coordinator.register_stage(f"text@r{number}", "", process=f"text@r{number}")
    admission = pipeline.coordinator.admission
    admission.limit("audio", 1, TERMINALS)
    admission.limit("text", 2, TERMINALS)
    for name in "abc":
        pipeline.submit(name)
    assert await names_of(pipeline, 1) == ["a"]
    assert (admission.waiting("audio"), admission.waiting("text")) == (2, 0)
    admission.limit("audio", None, TERMINALS)
    assert await names_of(pipeline, 1) == ["b"]
    assert (admission.waiting("audio"), admission.waiting("text")) == (0, 1)


async def test_a_request_that_does_not_need_the_full_process_does_not_wait(make: Any) -> None:
    pipeline = await make(
        terminal_stages=["text", "audio"], terminal_stages_resolver=lambda request: request.inputs
    )
    pipeline.coordinator.register_stage("speak@r0", "", process="speak@r0")
    pipeline.coordinator.admission.limit("speak", 1, frozenset({"audio"}))
    for name, inputs in {"a": ["audio"], "b": ["audio"], "c": ["text"], "d": ["text", "audio"]}.items():
        pipeline.submit(name, inputs)
    assert await names_of(pipeline, 2) == ["a", "c"]
    assert states(pipeline, "b", "d") == [RequestState.PENDING] * 2
    await pipeline.coordinator.abort("a")
    await pipeline.coordinator.abort("c")
    assert await names_of(pipeline, 1) == ["b"]


def two_replicas() -> ReplicaTable:
    table = ReplicaTable()
    for number in range(2):
        table.add(f"a@r{number}", f"p@r{number}")
    return table


async def test_requests_go_on_when_one_replica_is_up() -> None:
    table = two_replicas()
    admission = AdmissionQueues(table)
    table.mark_down(["a@r0", "a@r1"], "killed")
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits = asyncio.create_task(admission.wait_until_served(60, never))
    await asyncio.sleep(0)
    assert not waits.done()
    table.mark_up(["a@r1"])
    await asyncio.wait_for(waits, 60)
    assert table.assign() == {"a": 1}


async def test_waiting_for_a_replica_ends_after_the_timeout_or_with_the_request() -> None:
    table = two_replicas()
    admission = AdmissionQueues(table)
    table.mark_down(["a@r0", "a@r1"], "killed")
    loop = asyncio.get_running_loop()
    with pytest.raises(Unavailable, match=r"^stage 'a@r0', 'a@r1' still down after 0\.01 s: killed$"):
        await admission.wait_until_served(0.01, loop.create_future())
    given_up = loop.create_future()
    given_up.set_result(None)
    await asyncio.wait_for(admission.wait_until_served(3600, given_up), 60)
