"""ReplicaTable: which replicas a request is given, and which stages are unserved."""

from __future__ import annotations

from collections import Counter

from sglang_omni.pipeline.coordinator.instances import ReplicaTable


def with_replicas(**stages: int) -> ReplicaTable:
    """Each stage in a process of its own, with so many replicas."""
    table = ReplicaTable()
    for stage, count in stages.items():
        for number in range(count):
            table.add(f"{stage}@r{number}", f"p_{stage}@r{number}")
    return table


def taken(table: ReplicaTable, times: int) -> list[dict[str, int]]:
    given = [table.assign() for _ in range(times)]
    return [replicas for replicas in given if replicas is not None]


def test_no_replica_is_assigned_if_no_stage_is_replicated() -> None:
    table = ReplicaTable()
    table.add("a", "p")
    assert table.assign() is None


def test_the_replica_with_the_fewest_requests_is_assigned() -> None:
    table = with_replicas(a=2, b=3)
    given = taken(table, 12)
    assert Counter(replicas["a"] for replicas in given) == {0: 6, 1: 6}
    assert Counter(replicas["b"] for replicas in given) == {0: 4, 1: 4, 2: 4}
    for replicas in given:
        if replicas["b"] == 1:
            table.release(replicas)
    assert [replicas["b"] for replicas in taken(table, 5)].count(1) == 4


def test_idle_replicas_take_turns() -> None:
    table = with_replicas(a=3)
    seen = []
    for _ in range(6):
        (replicas,) = taken(table, 1)
        seen.append(replicas["a"])
        table.release(replicas)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_stages_of_one_process_get_the_same_replica() -> None:
    table = ReplicaTable()
    for number in range(3):
        table.add(f"a@r{number}", f"p@r{number}")
        table.add(f"b@r{number}", f"p@r{number}")
        table.add(f"t@r{number}", f"t@r{number}_tp0")
    given = taken(table, 6)
    assert all(replicas["a"] == replicas["b"] for replicas in given)
    assert Counter(replicas["a"] for replicas in given) == {0: 2, 1: 2, 2: 2}
    assert Counter(replicas["t"] for replicas in given) == {0: 2, 1: 2, 2: 2}


def test_replicas_that_are_down_or_leaving_get_no_requests() -> None:
    table = with_replicas(a=3)
    table.mark_down(["a@r1"], "gone")
    table.retire(["a@r2"])
    assert taken(table, 4) == [{"a": 0}] * 4
    assert not table.have_requests(["a@r2"])
    table.mark_up(["a@r1"])
    table.readmit(["a@r2"])
    assert Counter(replicas["a"] for replicas in taken(table, 8)) == {1: 4, 2: 4}


def test_a_removed_replica_is_forgotten_and_may_be_added_again() -> None:
    table = with_replicas(a=2)
    taken(table, 2)
    table.mark_down(["a@r1"], "gone")
    table.remove("a@r1")
    assert table.down == {}
    table.release({"a": 1})
    assert taken(table, 1) == [{"a": 0}]
    table.add("a@r1", "p_a@r1")
    assert taken(table, 2) == [{"a": 1}, {"a": 1}]


def test_an_instance_without_an_available_replica_beside_it_is_unserved() -> None:
    table = with_replicas(a=2)
    table.add("b", "p")
    table.mark_down(["a@r0"], "killed")
    assert table.unserved() == {}
    table.mark_down(["a@r1"], "killed too")
    assert table.unserved() == {"a@r0": "killed", "a@r1": "killed too"}
    table.mark_up(["a@r0"])
    table.mark_down(["b"], "out of memory")
    assert table.unserved() == {"b": "out of memory"}
    assert table.down == {"a@r1": "killed too", "b": "out of memory"}
