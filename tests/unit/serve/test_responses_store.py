"""Which responses are kept, for whom, and which are forgotten first."""

from __future__ import annotations

import pytest

from sglang_omni.client import RequestError
from sglang_omni.serve.responses_store import KeptResponse, ResponseStore


def message(text: str) -> dict[str, object]:
    return {"type": "message", "id": f"msg_{text[:8]}", "content": text}


def keep(
    store: ResponseStore,
    name: str,
    *,
    owner: str | None = None,
    previous: KeptResponse | None = None,
    text: str = "",
) -> KeptResponse:
    kept = KeptResponse(
        owner, {"id": name, "output": [message(f"{name}-out")]}, [message(name + text)], previous
    )
    assert store.fits(kept)
    store.keep(kept)
    return kept


def ids(store: ResponseStore, *names: str, owner: str | None = None) -> str:
    """Those of the names that are kept."""
    return "".join(name for name in names if store.get(name, owner) is not None)


def test_an_owner_finds_its_own_alone() -> None:
    store = ResponseStore()
    kept = keep(store, "a", owner="x")
    assert store.need("a", "x") is kept
    for owner in (None, "y"):
        with pytest.raises(RequestError) as refused:
            store.need("a", owner, "previous_response_id")
        assert (refused.value.status, refused.value.code) == (404, "previous_response_not_found")
        assert "send the conversation as input" in refused.value.message


def test_the_conversation_of_a_chain() -> None:
    store = ResponseStore()
    first = keep(store, "a")
    second = keep(store, "b", previous=first)
    assert [item["id"] for item in second.context()] == ["msg_a", "msg_a-out", "msg_b", "msg_b-out"]
    assert [item["id"] for item in second.input()] == ["msg_a", "msg_a-out", "msg_b"]


def test_those_used_longest_ago_are_forgotten() -> None:
    store = ResponseStore(max_responses=16)  # 4 an owner
    for name in "abcd":
        keep(store, name)
    store.get("a", None)
    keep(store, "e")
    assert ids(store, *"abcde") == "acde"


def test_a_response_is_not_forgotten_before_those_that_follow_it() -> None:
    store = ResponseStore(max_responses=16)
    first = keep(store, "a")
    keep(store, "b", previous=first)
    keep(store, "c")
    keep(store, "d")
    keep(store, "e")
    assert ids(store, *"abcde") == "acde"
    keep(store, "f")
    assert ids(store, *"abcdef") == "cdef"


def test_bytes_count_and_one_owner_does_not_push_out_another() -> None:
    store = ResponseStore(max_bytes=40_000)
    keep(store, "z", owner="other")
    for name in "abc":
        keep(store, name, text="x" * 4000)
    assert ids(store, *"abc") == "bc"
    assert ids(store, "z", owner="other") == "z"


def test_what_does_not_fit_with_its_chain_is_not_kept() -> None:
    store = ResponseStore(max_bytes=40_000)
    large = KeptResponse(None, {"id": "a", "output": []}, [message("x" * 10_000)])
    assert not store.fits(large)
    first = keep(store, "a", text="x" * 6000)
    assert not store.fits(KeptResponse(None, {"id": "b", "output": []}, [message("x" * 4000)], first))
    assert store.fits(KeptResponse(None, {"id": "b", "output": []}, [message("x" * 4000)]))


def test_a_response_cannot_follow_one_that_was_forgotten_meanwhile() -> None:
    store = ResponseStore()
    first = keep(store, "a")
    store.delete(first)
    assert not store.fits(KeptResponse(None, {"id": "b", "output": []}, [], first))


def test_a_deleted_response_is_found_no_more_and_those_that_follow_still_know_it() -> None:
    store = ResponseStore()
    first = keep(store, "a")
    second = keep(store, "b", previous=first)
    store.delete(first)
    assert ids(store, *"ab") == "b"
    assert [item["id"] for item in second.input()] == ["msg_a", "msg_a-out", "msg_b"]
    keep(store, "c", previous=second)
    for name in "bc":
        store.delete(store.need(name, None))
    assert not store._kept
    assert not store._sizes
    assert not store._counts


def test_a_long_chain_of_deleted_responses_goes_with_its_last() -> None:
    store = ResponseStore(max_responses=8192)
    last: KeptResponse | None = None
    for number in range(2000):
        last = keep(store, str(number), previous=last)
    for number in range(2000):
        store.delete(store.need(str(number), None))
    assert not store._kept
    assert not store._sizes
    assert not store._counts
