"""Fan-in: what AggregatedInput waits for, merges and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_omni.pipeline.stage.input import AggregatedInput, DirectInput
from sglang_omni.proto import OmniRequest, StagePayload


def payload(data: Any) -> StagePayload:
    return StagePayload("r", OmniRequest(None), data)


def merge(received: dict[str, StagePayload]) -> StagePayload:
    return payload({source: one.data for source, one in received.items()})


def test_direct_input_passes_each_payload_through() -> None:
    one = payload(1)
    handler = DirectInput()
    handler.cancel("r")
    assert handler.receive("r", "a", one) is one


def test_all_sources_are_awaited_and_merged() -> None:
    handler = AggregatedInput({"a", "b"}, merge)
    assert handler.receive("r", "a", payload(1)) is None
    merged = handler.receive("r", "b", payload(2))
    assert merged is not None
    assert merged.data == {"a": 1, "b": 2}


def test_requests_do_not_mix() -> None:
    handler = AggregatedInput({"a", "b"}, merge)
    assert handler.receive("r1", "a", payload(1)) is None
    assert handler.receive("r2", "b", payload(2)) is None
    merged = handler.receive("r1", "b", payload(3))
    assert merged is not None
    assert merged.data == {"a": 1, "b": 3}


def test_the_same_request_can_be_merged_again() -> None:
    handler = AggregatedInput({"a"}, merge)
    for value in (1, 2):
        merged = handler.receive("r", "a", payload(value))
        assert merged is not None
        assert merged.data == {"a": value}


def test_a_cancelled_request_starts_over() -> None:
    handler = AggregatedInput({"a", "b"}, merge)
    handler.receive("r", "a", payload(1))
    handler.cancel("r")
    assert handler.receive("r", "b", payload(2)) is None


def test_a_source_outside_wait_for_is_refused() -> None:
    handler = AggregatedInput({"a"}, merge)
    with pytest.raises(ValueError, match="outside static wait_for"):
        handler.receive("r", "x", payload(1))


def test_expected_sources_may_be_a_subset() -> None:
    handler = AggregatedInput({"a", "b", "c"}, merge, lambda request_id, source, one: ["a", "c"])
    assert handler.receive("r", "c", payload(3)) is None
    merged = handler.receive("r", "a", payload(1))
    assert merged is not None
    assert merged.data == {"c": 3, "a": 1}


def test_one_expected_source_may_be_given_by_its_name() -> None:
    handler = AggregatedInput({"a", "b"}, merge, lambda request_id, source, one: "b")
    merged = handler.receive("r", "b", payload(1))
    assert merged is not None
    assert merged.data == {"b": 1}


def test_expected_sources_may_become_known_late() -> None:
    asked: list[tuple[str, str]] = []

    def expected(request_id: str, source: str, one: StagePayload) -> list[str] | None:
        asked.append((request_id, source))
        return one.data if isinstance(one.data, list) else None

    handler = AggregatedInput({"a", "b", "c"}, merge, expected)
    assert handler.receive("r", "a", payload(None)) is None
    assert handler.receive("r", "b", payload(["a", "b", "c"])) is None
    assert handler.receive("r", "c", payload(None)) is not None
    assert asked == [("r", "a"), ("r", "b")]  # Once it is known, it is not asked again.


@pytest.mark.parametrize("named", [[], "", 7, {"x": 1}, ["a", "x"]])
def test_a_bad_answer_about_expected_sources_is_an_error(named: Any) -> None:
    handler = AggregatedInput({"a", "b"}, merge, lambda request_id, source, one: named)
    with pytest.raises(ValueError, match=r"wait_for"):
        handler.receive("r", "a", payload(1))


def test_unknown_expected_sources_are_named() -> None:
    handler = AggregatedInput({"a", "b"}, merge, lambda request_id, source, one: ["a", "x"])
    with pytest.raises(ValueError, match=r"outside static wait_for.*'x'.*allowed: \['a', 'b'\]"):
        handler.receive("r", "a", payload(1))


def test_a_payload_of_a_source_that_was_not_expected_is_an_error() -> None:
    handler = AggregatedInput({"a", "b"}, merge, lambda request_id, source, one: ["a"])
    with pytest.raises(ValueError, match=r"\['b'\], but wait_for_fn expects only \['a'\]"):
        handler.receive("r", "b", payload(1))


def test_aggregation_needs_sources() -> None:
    with pytest.raises(ValueError, match="at least one source"):
        AggregatedInput(set(), merge)
