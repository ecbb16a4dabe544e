"""What several readers get is written once, and none of them can spoil it for another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=4, credits=1)
    yield relay
    relay.close()


@pytest.mark.parametrize("size", [20_000, 500_000, 3_000_000], ids=["a slot", "a range", "memory of its own"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
async def test_a_reader_that_computes_in_place_changes_no_other_readers_input(
    relay: ShmRelay, size: int, library: str
) -> None:
    sent: Any = torch.ones(size) if library == "torch" else np.ones(size, np.float32)
    fan_out = FanOut(relay, {"x": sent})
    written = [(await fan_out.write("k", target))[0] for target in ("a", "b", "c")]
    first, second = [(await read_blob(relay, "k", metadata))["x"] for metadata in written[:2]]
    first *= 2
    second += 5
    third = (await read_blob(relay, "k", written[2]))["x"]
    assert [set(read.tolist()) for read in (first, second, third)] == [{2.0}, {6.0}, {1.0}]
    del first, second, third, fan_out
    assert relay.arena.outstanding() == 0
    # The room's next payload shows nothing of it.
    metadata, _ = await write_blob(relay, "k", np.full(size, 7, np.float32))
    assert set((await read_blob(relay, "k", metadata)).tolist()) == {7.0}
