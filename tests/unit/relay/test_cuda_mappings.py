"""Allocations of other processes are opened once, and not for longer than loans need them and a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_gpu import FakeDriver

from sglang_omni.relay.shm import cuda_mappings
from sglang_omni.relay.shm.cuda_driver import CudaError


class Clock:
    """Runs what is due later when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Any]] = []
        monkeypatch.setattr(cuda_mappings, "time", SimpleNamespace(monotonic=lambda: self.now))

    def later(self, seconds: float, step: Any) -> None:
        self.due.append((self.now + seconds, step))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [entry for entry in self.due if entry[0] <= self.now]
        self.due = [entry for entry in self.due if entry[0] > self.now]
        for _, step in due:
            step()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def mappings(clock: Clock) -> cuda_mappings.CudaMappings:
    return cuda_mappings.CudaMappings(cast(Any, FakeDriver()), clock.later)


def handle(address: int) -> bytes:
    return address.to_bytes(8, "little").ljust(64, b"\0")


def test_what_no_loan_needs_stays_open_for_a_moment(mappings: Any, clock: Clock) -> None:
    driver = mappings._driver
    mappings.give_back(mappings.take(0, handle(64), 1))
    clock.advance(cuda_mappings.IDLE_SECONDS / 2)
    again = mappings.take(0, handle(64), 1)
    clock.advance(cuda_mappings.IDLE_SECONDS)
    assert (driver.num_opened, driver.opened) == (1, [64]), "closed under a loan, or opened again"
    mappings.give_back(again)
    clock.advance(cuda_mappings.IDLE_SECONDS)
    assert driver.opened == []
    assert clock.due == []


def test_the_handle_of_freed_memory_does_not_stand_for_what_came_after_it(mappings: Any) -> None:
    driver = mappings._driver
    mappings.give_back(mappings.take(0, handle(64), 1))
    mappings.take(0, handle(64), 2)
    assert (driver.num_opened, driver.opened) == (2, [64])


def test_only_so_many_and_no_large_ones_stay_open(mappings: Any) -> None:
    driver = mappings._driver
    for number in range(cuda_mappings.MAX_IDLE + 3):
        mappings.give_back(mappings.take(0, handle(64 * number), 1))
    assert driver.opened == [64 * number for number in range(3, cuda_mappings.MAX_IDLE + 3)]
    driver.room = cuda_mappings.MAX_IDLE_BYTES + 1
    mappings.give_back(mappings.take(0, handle(1 << 20), 1))
    assert 1 << 20 not in driver.opened


def test_an_allocation_whose_size_is_unknown_is_closed(mappings: Any) -> None:
    driver = mappings._driver

    def fails(address: int) -> Any:
        raise CudaError("unknown")

    driver.allocation = fails
    with pytest.raises(CudaError):
        mappings.take(0, handle(64), 1)
    assert driver.opened == []
