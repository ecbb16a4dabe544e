"""Which replicas a request is given."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sglang_omni.pipeline.coordinator.replicas import Assignments
from sglang_omni.proto import Unavailable


def with_replicas(**stages: int) -> Assignments:
    """Each stage in a process of its own, with so many replicas."""
    assignments = Assignments()
    for stage, count in stages.items():
        for number in range(count):
            assignments.add(f"{stage}@r{number}", f"p_{stage}@r{number}")
    return assignments


def taken(assignments: Assignments, times: int) -> list[dict[str, int]]:
    given = [assignments.assign() for _ in range(times)]
    return [replicas for replicas in given if replicas is not None]


def test_nothing_is_given_where_nothing_is_replicated() -> None:
    assignments = Assignments()
    assignments.add("a", "p")
    assert assignments.assign() is None


def test_each_stage_gets_the_replica_with_the_fewest_requests() -> None:
    assignments = with_replicas(a=2, b=3)
    given = taken(assignments, 12)
    assert Counter(replicas["a"] for replicas in given) == {0: 6, 1: 6}
    assert Counter(replicas["b"] for replicas in given) == {0: 4, 1: 4, 2: 4}
    for replicas in given:
        if replicas["b"] == 1:
            assignments.release(replicas)
    assert [replicas["b"] for replicas in taken(assignments, 5)].count(1) == 4


def test_one_request_after_the_other_goes_round() -> None:
    assignments = with_replicas(a=3)
    seen = []
    for _ in range(6):
        (replicas,) = taken(assignments, 1)
        seen.append(replicas["a"])
        assignments.release(replicas)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_stages_of_one_process_are_given_together() -> None:
    assignments = Assignments()
    for number in range(3):
        assignments.add(f"a@r{number}", f"p@r{number}")
        assignments.add(f"b@r{number}", f"p@r{number}")
        assignments.add(f"t@r{number}", f"t@r{number}_tp0")
    given = taken(assignments, 6)
    assert all(replicas["a"] == replicas["b"] for replicas in given)
    assert Counter(replicas["a"] for replicas in given) == {0: 2, 1: 2, 2: 2}
    assert Counter(replicas["t"] for replicas in given) == {0: 2, 1: 2, 2: 2}


def test_what_is_down_or_leaving_gets_nothing() -> None:
    assignments = with_replicas(a=3)
    assignments.mark_down(["a@r1"], "gone")
    assignments.retire(["a@r2"])
    assert taken(assignments, 4) == [{"a": 0}] * 4
    assert not assignments.have_requests(["a@r2"])
    assignments.mark_up(["a@r1"])
    assignments.readmit(["a@r2"])
    assert Counter(replicas["a"] for replicas in taken(assignments, 8)) == {1: 4, 2: 4}


def test_a_replica_that_has_left_is_forgotten_and_may_come_again() -> None:
    assignments = with_replicas(a=2)
    taken(assignments, 2)
    assignments.mark_down(["a@r1"], "gone")
    assignments.remove("a@r1")
    assert assignments.down == {}
    assignments.release({"a": 1})
    assert taken(assignments, 1) == [{"a": 0}]
    assignments.add("a@r1", "p_a@r1")
    assert taken(assignments, 2) == [{"a": 1}, {"a": 1}]


def test_only_what_nobody_can_stand_in_for_is_unserved() -> None:
    assignments = with_replicas(a=2)
    assignments.add("b", "p")
    assignments.mark_down(["a@r0"], "killed")
    assert assignments.unserved() == {}
    assignments.mark_down(["a@r1"], "killed too")
    assert assignments.unserved() == {"a@r0": "killed", "a@r1": "killed too"}
    assignments.mark_up(["a@r0"])
    assignments.mark_down(["b"], "out of memory")
    assert assignments.unserved() == {"b": "out of memory"}
    assert assignments.down == {"a@r1": "killed too", "b": "out of memory"}


@pytest.mark.asyncio
async def test_who_waits_goes_on_when_one_replica_is_up() -> None:
    assignments = with_replicas(a=2)
    assignments.mark_down(["a@r0", "a@r1"], "killed")
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits = asyncio.create_task(assignments.wait_until_served(60, never))
    await asyncio.sleep(0)
    assert not waits.done()
    assignments.mark_up(["a@r1"])
    await asyncio.wait_for(waits, 60)
    assert assignments.assign() == {"a": 1}


@pytest.mark.asyncio
async def test_the_wait_has_an_end() -> None:
    assignments = with_replicas(a=1)
    assignments.mark_down(["a@r0"], "killed")
    loop = asyncio.get_running_loop()
    with pytest.raises(Unavailable, match=r"^stage 'a@r0' still down after 0\.01 s: killed$"):
        await assignments.wait_until_served(0.01, loop.create_future())
    given_up = loop.create_future()
    given_up.set_result(None)
    await asyncio.wait_for(assignments.wait_until_served(3600, given_up), 60)
