"""Credits as backends with slots use them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_omni._core import CreditLedger


def test_edges_do_not_share() -> None:
    ledger = CreditLedger(2)
    assert ledger.take("a")
    assert ledger.take("a")
    assert not ledger.take("a")
    assert ledger.take("b", 2)
    # One that asks twice before it is given something has waited once.
    ledger.note_wait("a")
    assert not ledger.take("a")
    ledger.give_back("a")
    assert ledger.take("a")
    assert sorted(ledger.snapshot()) == [("a", 2, 1), ("b", 2, 0)]
    assert (ledger.limit, ledger.held("b"), ledger.held("c")) == (2, 2, 0)


def test_a_large_amount_is_granted_where_half_is_free() -> None:
    ledger = CreditLedger(10)
    assert ledger.take("a", 5)
    assert ledger.take("a", 25)
    assert not ledger.take("a")


def test_what_was_not_taken_is_not_given_back() -> None:
    ledger = CreditLedger(3)
    ledger.take("a")
    with pytest.raises(ValueError, match='edge "a" holds 1: 2 were not taken'):
        ledger.give_back("a", 2)
    assert ledger.held("a") == 1


def test_threads_lose_nothing() -> None:
    ledger = CreditLedger(1)

    def work(edge: str) -> int:
        taken = 0
        for _ in range(2000):
            if ledger.take(edge):
                taken += 1
                assert ledger.held(edge) == 1
                ledger.give_back(edge)
        return taken

    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(work, ["a", "a", "b", "b"]))
    # Of two threads of an edge, one may have the credit whenever the other tries.
    assert sum(taken[:2])
    assert sum(taken[2:])
    assert {edge: held for edge, held, _ in ledger.snapshot()} == {"a": 0, "b": 0}
