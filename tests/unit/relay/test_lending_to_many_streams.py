"""64 streams of 50 frames are lent at a time, to readers that are fast, slow, or gone in the middle.

The driver is the fake one, in whose memory the frames lie; torch's side of a GPU is ``fake_gpu``'s.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeEvent, install
from fake_machine import FakeMachine
from waiting import until

from sglang_omni.pipeline.relay_io import read_stream_chunk, send_stream_chunk
from sglang_omni.pipeline.stage.edges import cuda as lending
from sglang_omni.proto import codec
from sglang_omni.relay.shm import cuda_ipc
from sglang_omni.relay.shm.cuda_driver import CudaDriver
from sglang_omni.relay.shm.cuda_mappings import CudaMappings
from sglang_omni.relay.shm.loans import MAX_LOANS
from sglang_omni.relay.shm.relay import ShmRelay

STREAMS, FRAMES, CODES = 64, 50, 16
# A frame's place: torch's allocator gives whole blocks of 512 bytes.
BLOCK = 512
# What a slow reader collects before it computes a chunk.
CHUNK = 25


class Driver(CudaDriver):
    """The fake one; torch says of its memory that it is on no GPU."""

    def on(self, device: int) -> AbstractContextManager[None]:
        return super().on(max(device, 0))


class FakeGpuMemory:
    """One allocation for the n-th frames of all streams."""

    def __init__(self, library: Path) -> None:
        self.driver = Driver()
        self.library = ctypes.CDLL(str(library))
        self.starts = []
        with self.driver.on(0):
            for _ in range(FRAMES):
                start = ctypes.c_uint64()
                assert self.library.cuMemAlloc_v2(ctypes.byref(start), ctypes.c_size_t(STREAMS * BLOCK)) == 0
                self.starts.append(start.value)

    def frame(self, stream: int, number: int) -> torch.Tensor:
        address = self.starts[number] + stream * BLOCK
        frame = torch.frombuffer((ctypes.c_int64 * CODES).from_address(address), dtype=torch.int64)
        return frame.copy_(codes(stream, number))

    def holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and any(
            start <= value.data_ptr() < start + STREAMS * BLOCK for start in self.starts
        )

    def free(self) -> None:
        with self.driver.on(0):
            assert all(self.library.cuMemFree_v2(ctypes.c_uint64(start)) == 0 for start in self.starts)


def codes(stream: int, number: int) -> torch.Tensor:
    return torch.arange(CODES) + 1000 * stream + 100_000 * number


@pytest.fixture
def memory(
    fake_machine: FakeMachine, fake_driver: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeGpuMemory]:
    fake_machine.has(1)
    install(monkeypatch)
    made = FakeGpuMemory(fake_driver)
    mappings = CudaMappings(made.driver, cuda_ipc._later)
    monkeypatch.setattr(cuda_ipc, "cuda_driver", lambda: made.driver)
    monkeypatch.setattr(cuda_ipc, "_mappings", lambda: mappings)
    monkeypatch.setattr(lending, "is_lendable", made.holds)
    yield made
    made.free()


class Wire:
    """Announcements of one stream's frames, in order."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        self.sent.put_nowait(codec.unpack(codec.pack(message.shm_metadata)))


async def speak(memory: FakeGpuMemory, relay: ShmRelay, stream: int, wire: Wire) -> None:
    for number in range(FRAMES):
        await send_stream_chunk(
            relay,
            wire,
            request_id=str(stream),
            data=memory.frame(stream, number),
            target_stage="code2wav",
            target_endpoint="ipc://nowhere",
            from_stage="talker",
            chunk_id=number,
            same_gpu_targets={"code2wav"},
        )
        # Streams take turns, as their frames do in a step.
        await asyncio.sleep(0)


async def listen(relay: ShmRelay, stream: int, wire: Wire, *, keeps: int, until_frame: int) -> int:
    """Reads a stream's frames and keeps the newest ``keeps``; returns how many of them were lent."""
    kept: list[torch.Tensor] = []
    lent = 0
    for number in range(until_frame):
        announced = await wire.sent.get()
        lent += "loan" in announced
        frame, _ = await read_stream_chunk(relay, str(stream), announced)
        assert torch.equal(frame, codes(stream, number)), "another frame"
        kept.append(frame)
        if len(kept) >= keeps:
            # Every one of them still shows what it showed.
            for age, old in enumerate(reversed(kept)):
                assert torch.equal(old, codes(stream, number - age))
            kept.clear()
    return lent


async def test_every_loan_comes_back(memory: FakeGpuMemory) -> None:
    sender, reader = ShmRelay("talker", slot_size_mb=1, credits=8), ShmRelay("code2wav")
    wires = [Wire() for _ in range(STREAMS)]
    speaking = [asyncio.create_task(speak(memory, sender, n, wire)) for n, wire in enumerate(wires)]
    listening = []
    for stream, wire in enumerate(wires):
        # A quarter collects frames; an eighth is aborted, with frames that nobody has read.
        keeps = CHUNK if stream % 4 == 1 else 1
        last = 20 if stream % 8 == 0 else FRAMES
        listening.append(asyncio.create_task(listen(reader, stream, wire, keeps=keeps, until_frame=last)))
    async with asyncio.timeout(120):
        lent = await asyncio.gather(*listening)
        await asyncio.gather(*speaking)
    for stream in range(0, STREAMS, 8):
        sender.cleanup(str(stream))
    gc.collect()

    await until(lambda: sender.loans.lent() == {})
    await until(lambda: memory.library.fakeOpened() == 0)
    assert sender.loans._loans == []
    assert sender.loans._counts.total() == 0
    # An edge's share at least; what slow readers keep beyond it was copied.
    assert sum(lent) >= MAX_LOANS
    # An event for each stream of the GPU that frames come from.
    assert FakeEvent.made == 1
    # Each allocation once at a time, however many loans lie in it.
    assert 0 < memory.library.fakeMostOpened() <= FRAMES
    sender.close()
    reader.close()
