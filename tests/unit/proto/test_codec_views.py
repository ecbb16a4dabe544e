"""Views that skip memory: what they skip stays behind, what they share stays shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import install, on_gpu

from sglang_omni.proto import codec
from sglang_omni.relay.shm import device_copy

SECRET = b"\xabSECRET\xcd" * 8


def through(obj: Any) -> tuple[bytes, Any]:
    packed = codec.plan(obj).to_bytes()
    return packed, codec.unpack_payload(bytearray(packed), trusted=True)


def matrix() -> torch.Tensor:
    """1000 rows of 1000 numbers, all of them recognizable but those of columns 2 and 7."""
    whole = torch.full((1000, 1000), 1.2345678)
    whole[:, 2] = torch.arange(1000.0)
    whole[:, 7] = -torch.arange(1000.0)
    return whole


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_columns_of_a_matrix_are_sent_without_their_neighbours(library: str) -> None:
    whole: Any = matrix() if library == "torch" else matrix().numpy()
    packed, (two, seven) = through((whole[:, 2], whole[:, 7]))
    assert len(packed) < 9000
    assert np.float32(1.2345678).tobytes() not in packed
    assert two.tolist() == whole[:, 2].tolist()
    assert seven.tolist() == whole[:, 7].tolist()


def test_columns_of_a_gpus_matrix_are_sent_without_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    whole = matrix()
    two, seven, wide = whole[:, 2], whole[:, 7], whole[:, 7:8].expand(1000, 3)
    packed, back = through([on_gpu(view) for view in (two, seven, wide)])
    assert len(packed) < 9000
    assert np.float32(1.2345678).tobytes() not in packed
    assert all(torch.equal(got, sent) for got, sent in zip(back, (two, seven, wide), strict=True))
    back[1][5] = 99
    assert back[2][5].tolist() == [99, 99, 99]


def test_views_that_share_some_columns_share_them_there() -> None:
    whole = matrix()
    packed, (left, right, numpys) = through((whole[:, 0:4], whole[:, 2:8], whole.numpy()[::2, 7]))
    assert len(packed) < 40 * 1000
    assert torch.equal(left, whole[:, 0:4])
    assert torch.equal(right, whole[:, 2:8])
    left[10, 2] = 5
    assert right[10, 0] == 5
    right[4, 5] = 6
    assert numpys[2] == 6


def test_what_cannot_be_moved_closer_comes_without_what_lies_between() -> None:
    memory = np.frombuffer(bytearray(SECRET * 10_000), np.uint8).reshape(-1, 640)
    memory[0], memory[:, 0], memory[:, 1] = 1, 2, 3
    diagonal = np.lib.stride_tricks.as_strided(memory, (100,), (641,))
    diagonal[:] = 4
    packed, back = through([memory[0], memory[:, 0], diagonal])
    assert b"SECRET" not in packed
    for got, sent in zip(back, (memory[0], memory[:, 0], diagonal), strict=True):
        assert got.tolist() == sent.tolist()
    back[0][0] = 77
    assert [int(view[0]) for view in back] == [77, 77, 77]


def test_parts_that_are_all_there_is_are_sent_as_they_lie() -> None:
    fused = torch.randn(64, 96)
    query, key, value = fused.chunk(3, dim=1)
    packed, back = through((query, key, value))
    assert fused.numpy().tobytes() in packed
    assert [part.stride() for part in back] == [(96, 1)] * 3


def test_an_expanded_column_takes_the_room_of_one() -> None:
    packed, back = through(matrix()[:, 2:3].expand(1000, 1000))
    assert len(packed) < 5000
    assert torch.equal(back, matrix()[:, 2:3].expand(1000, 1000))


def test_views_backwards_and_of_other_types_arrive_as_they_were() -> None:
    memory = np.arange(40_000, dtype=np.int32).reshape(200, 200)
    views = [memory[::-3, 5:1:-1], memory.view(np.int16)[:, 8:11], memory[::-1].T[4, ::7]]
    packed, back = through(views)
    assert len(packed) < 200 * 40
    for got, sent in zip(back, views, strict=True):
        assert got.dtype == sent.dtype
        assert got.tolist() == sent.tolist()


def test_a_copy_from_a_gpu_that_fails_leaves_the_plan_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    plan = codec.plan([on_gpu(matrix()[:, 2])])
    monkeypatch.setattr(device_copy, "_copy", _fail)
    with pytest.raises(RuntimeError, match="the GPU fell off"):
        plan.to_bytes()
    monkeypatch.undo()
    install(monkeypatch)
    assert codec.unpack_payload(bytearray(plan.to_bytes()))[0].tolist() == list(range(1000))


def _fail(*_args: Any) -> None:
    raise RuntimeError("the GPU fell off")
