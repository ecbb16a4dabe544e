"""EncoderEngine: batches across requests, equal items computed once, a cache bounded by bytes, aborts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch

from sglang_omni.engines.cache import ItemOutput, OutputCache
from sglang_omni.engines.encoder import EncoderEngine, EncoderRequest, ItemInfo


class Item(NamedTuple):
    name: str
    cost: int = 1
    group: int = 0


class Recorder:
    """An encoder whose output for an item is 10 floats that encode its name."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.broken = ""

    def info(self, item: Item) -> ItemInfo:
        return ItemInfo(item.name.encode(), item.cost, item.group)

    def encode(self, items: Sequence[Item]) -> list[ItemOutput]:
        self.batches.append([item.name for item in items])
        if any(item.name == self.broken for item in items):
            raise RuntimeError("no such picture")
        return [(torch.full((10,), float(ord(item.name[0]))),) for item in items]


class Harness:
    def __init__(self, *, cost: int = 100, cache_bytes: int = 1000) -> None:
        self.encoder = Recorder()
        self.engine = EncoderEngine(self.encoder, OutputCache(cache_bytes), max_batch_cost=cost)

    def add(self, request_id: str, *items: Item | str) -> EncoderRequest:
        made = [Item(item) if isinstance(item, str) else item for item in items]
        request = EncoderRequest(request_id, made)
        self.engine.add(request)
        return request

    def run(self) -> list[list[str]]:
        """Steps until no work is left. Returns what each step finished."""
        finished = []
        while self.engine.has_work:
            finished.append([request.request_id for request in self.engine.step()])
        return finished


def names(request: EncoderRequest) -> str:
    assert request.finish_reason == "stop"
    return "".join(chr(int(rows[0])) for (rows,) in request.outputs)


def test_items_of_several_requests_are_one_batch() -> None:
    harness = Harness()
    first, second = harness.add("1", "a", "b"), harness.add("2", "c")
    assert harness.run() == [["1", "2"]]
    assert harness.encoder.batches == [["a", "b", "c"]]
    assert (names(first), names(second)) == ("ab", "c")


def test_a_batch_is_bounded_and_a_costly_item_goes_alone() -> None:
    harness = Harness(cost=10)
    harness.add("1", Item("a", 4), Item("b", 4), Item("c", 4))
    harness.add("2", Item("x", 50))
    harness.add("3", Item("d", 2))
    assert harness.run() == [["3"], ["1"], ["2"]]
    assert harness.encoder.batches == [["a", "b", "d"], ["c"], ["x"]]


def test_groups_are_not_mixed() -> None:
    harness = Harness()
    harness.add("1", Item("a", group=1), Item("b", group=2), Item("c", group=1))
    harness.add("2", Item("d", group=2))
    harness.run()
    assert harness.encoder.batches == [["a", "c"], ["b", "d"]]


def test_what_is_asked_for_twice_at_once_is_computed_once() -> None:
    harness = Harness()
    requests = [harness.add(str(i), "a", "b", "a") for i in range(3)]
    assert harness.run() == [["0", "1", "2"]]
    assert harness.encoder.batches == [["a", "b"]]
    assert [names(request) for request in requests] == ["aba"] * 3
    stats = harness.engine.stats()
    assert (stats["cache_misses_total"], stats["cache_hits_total"]) == (2, 7)


def test_what_was_computed_before_is_not_again() -> None:
    harness = Harness()
    harness.add("1", "a", "b")
    harness.run()
    again = harness.add("2", "b", "a", "c")
    assert harness.run() == [["2"]]
    whole = harness.add("3", "c", "b")
    assert harness.engine.has_work
    assert harness.run() == [["3"]]
    assert harness.encoder.batches == [["a", "b"], ["c"]]
    assert (names(again), names(whole)) == ("bac", "cb")


def test_a_request_without_items_is_complete() -> None:
    harness = Harness()
    request = harness.add("1")
    assert harness.run() == [["1"]]
    assert request.outputs == []
    assert harness.encoder.batches == []


def test_the_cache_keeps_what_fits_and_was_used_last() -> None:
    harness = Harness(cache_bytes=80)
    for index, name in enumerate("abacab"):
        harness.add(str(index), name)
        harness.run()
    # 40 bytes each: c evicts b, not a, which was used later.
    assert harness.encoder.batches == [["a"], ["b"], ["c"], ["b"]]
    stats = harness.engine.stats()
    assert (stats["cache_used_bytes"], stats["cache_max_bytes"]) == (80, 80)
    harness.engine.flush_cache()
    assert harness.engine.stats()["cache_used_bytes"] == 0
    harness.add("later", "b")
    harness.run()
    assert harness.encoder.batches[-1] == ["b"]


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    harness = Harness(cache_bytes=39)
    for index in range(2):
        assert names(_run_one(harness, str(index), "a")) == "a"
    assert harness.encoder.batches == [["a"], ["a"]]
    assert harness.engine.stats()["cache_used_bytes"] == 0


def _run_one(harness: Harness, request_id: str, item: str) -> EncoderRequest:
    request = harness.add(request_id, item)
    harness.run()
    return request


def test_an_abort_drops_what_no_other_request_waits_for() -> None:
    harness = Harness()
    harness.add("1", "a", "b", "c")
    kept = harness.add("2", "b")
    aborted = harness.engine.abort("1")
    assert aborted is not None
    assert harness.engine.abort("1") is None
    assert harness.run() == [["2"]]
    assert harness.encoder.batches == [["b"]]
    assert names(kept) == "b"
    stats = harness.engine.stats()
    assert (stats["num_running_reqs"], stats["num_queue_reqs"]) == (0, 0)


def test_an_abort_between_steps_leaves_the_rest_uncomputed() -> None:
    harness = Harness(cost=1)
    harness.add("1", "a", "b", "c")
    assert harness.engine.step() == []
    assert harness.engine.stats()["num_running_reqs"] == 1
    harness.engine.abort("1")
    assert not harness.engine.has_work
    assert harness.encoder.batches == [["a"]]


def test_an_abort_of_a_complete_request_takes_its_result() -> None:
    harness = Harness()
    harness.add("1")
    harness.engine.abort("1")
    assert not harness.engine.has_work


def test_a_batch_that_fails_names_its_requests_and_no_other() -> None:
    harness = Harness(cost=2)
    harness.encoder.broken = "b"
    harness.add("1", "a", "b")
    harness.add("2", "b", "c")
    fine = harness.add("3", "c")
    with pytest.raises(RuntimeError, match="no such picture"):
        harness.engine.step()
    failed = [request.request_id for request in harness.engine.running]
    assert failed == ["1", "2"]
    for request_id in failed:
        harness.engine.abort(request_id)
    assert harness.run() == [["3"]]
    assert names(fine) == "c"
    assert harness.encoder.batches == [["a", "b"], ["c"]]
    assert harness.engine.running == []


def test_an_id_that_is_here_is_refused() -> None:
    harness = Harness()
    harness.add("1", "a")
    with pytest.raises(ValueError, match="already in the engine"):
        harness.add("1", "b")
