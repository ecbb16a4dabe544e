"""Which parts of shared memory are page-locked for copies to and from a GPU, and until when."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from fake_gpu import FakeGpu, install

from sglang_omni.relay.shm.pinned import CHUNK_BYTES, PIN_FROM_BYTES, PinnedMemory

START = 1 << 40
MiB = 1 << 20


@dataclass
class Range:
    address: int = START
    nbytes: int = 3 * CHUNK_BYTES + MiB
    is_used_elsewhere: bool = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return install(monkeypatch)


@pytest.fixture
def memory(gpu: FakeGpu) -> PinnedMemory:
    memory = PinnedMemory()
    memory.add(Range())
    return memory


def test_only_touched_chunks_are_locked_and_each_once(gpu: FakeGpu, memory: PinnedMemory) -> None:
    assert memory.pin(START + CHUNK_BYTES + MiB, MiB, device=0) == [(START + CHUNK_BYTES + MiB, MiB)]
    memory.pin(START + CHUNK_BYTES, 2 * MiB, device=0)
    assert gpu.driver.locked == [(START + CHUNK_BYTES, CHUNK_BYTES)]


def test_a_copy_over_an_edge_is_made_in_pieces(gpu: FakeGpu, memory: PinnedMemory) -> None:
    address, nbytes = START + CHUNK_BYTES - MiB, CHUNK_BYTES + 3 * MiB
    assert memory.pin(address, nbytes, device=0) == [
        (START + CHUNK_BYTES - MiB, MiB),
        (START + CHUNK_BYTES, CHUNK_BYTES),
        (START + 2 * CHUNK_BYTES, 2 * MiB),
    ]
    assert gpu.driver.locked == [(START + i * CHUNK_BYTES, CHUNK_BYTES) for i in range(3)]


def test_a_range_that_ends_on_an_edge_does_not_touch_the_next_chunk(
    gpu: FakeGpu, memory: PinnedMemory
) -> None:
    assert memory.pin(START, CHUNK_BYTES, device=0) == [(START, CHUNK_BYTES)]
    assert gpu.driver.locked == [(START, CHUNK_BYTES)]


def test_the_last_chunk_ends_with_the_mapping(gpu: FakeGpu, memory: PinnedMemory) -> None:
    memory.pin(START + 3 * CHUNK_BYTES, MiB, device=0)
    assert gpu.driver.locked == [(START + 3 * CHUNK_BYTES, MiB)]


def test_small_copies_and_unknown_memory_are_left_alone(gpu: FakeGpu, memory: PinnedMemory) -> None:
    assert memory.pin(START, PIN_FROM_BYTES - 1, device=0) == [(START, PIN_FROM_BYTES - 1)]
    assert memory.pin(START - MiB, MiB, device=0) == [(START - MiB, MiB)]
    assert gpu.driver.locked == []


def test_what_is_pinned_is_known(gpu: FakeGpu, memory: PinnedMemory) -> None:
    memory.pin(START, CHUNK_BYTES, device=0)
    assert memory.is_pinned(START + MiB, MiB)
    assert not memory.is_pinned(START + CHUNK_BYTES - MiB, 2 * MiB)
    assert not memory.is_pinned(START - MiB, MiB)


def test_removing_unlocks(gpu: FakeGpu, memory: PinnedMemory) -> None:
    memory.pin(START, 2 * CHUNK_BYTES, device=0)
    memory.remove(Range())
    memory.remove(Range())
    assert gpu.driver.locked == []
    assert memory.pin(START, MiB, device=0) == [(START, MiB)]
    assert gpu.driver.locked == []


def test_what_nothing_else_uses_is_unlocked_when_more_is_added(gpu: FakeGpu) -> None:
    memory, gone, used = PinnedMemory(), Range(), Range(START * 2)
    for mapping in (gone, used):
        memory.add(mapping)
        memory.pin(mapping.address, MiB, device=0)
    gone.is_used_elsewhere = False
    memory.add(used)
    assert len(gpu.driver.locked) == 2, "what is known already is no occasion"
    memory.add(Range(START * 3))
    assert gpu.driver.locked == [(START * 2, CHUNK_BYTES)]


def test_a_refusal_is_reported_once_and_not_tried_again(
    gpu: FakeGpu, memory: PinnedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.pin(START, MiB, device=0)
    gpu.driver.refusal = "cuMemHostRegister_v2: out of memory (CUDA error 2)"
    for _ in range(2):
        pieces = memory.pin(START + CHUNK_BYTES, MiB, device=0)
        assert pieces == [(START + CHUNK_BYTES, MiB)]
    assert gpu.driver.calls == ["page_lock"] * 2
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "out of memory (CUDA error 2)" in warning
    assert "ulimit -l" in warning
    assert memory.is_pinned(START + CHUNK_BYTES, MiB), "a reader would try for each payload"
    memory.remove(Range())
    assert gpu.driver.locked == [], "what was locked before the refusal"
