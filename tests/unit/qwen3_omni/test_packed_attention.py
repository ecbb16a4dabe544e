"""Attention over a packed batch equals attention within each of its segments."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sglang_omni.models.omni import packed_attention as packed

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LENGTHS = [5, 5, 5, 12, 1, 5, 7, 7]


def batch(device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 1, sum(LENGTHS), 4, 72, generator=generator)
    return [part.transpose(1, 2) for part in rows.to(device, dtype)]


def within_each(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    parts = zip(*(part.split(LENGTHS, dim=2) for part in (query, key, value)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*part, scale=0.3) for part in parts], 2).transpose(1, 2)


def as_varlen(query: Any, key: Any, value: Any, bounds: Any, same: Any, *longest: int, scale: float) -> Any:
    """What torch's does, of which a CPU has none."""
    assert bounds is same
    assert longest == (12, 12)
    lengths = bounds.diff().tolist()
    parts = zip(*(part.transpose(0, 1)[None].split(lengths, 2) for part in (query, key, value)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*part, scale=scale) for part in parts], 2)[0].transpose(
        0, 1
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("varlen", [None, as_varlen], ids=["runs", "varlen"])
def test_segments_do_not_see_one_another(device: str, varlen: Any) -> None:
    rows = batch(device)
    with packed.segments(LENGTHS, device, varlen) as whole:
        found, _ = packed.packed_attention(None, *rows, attention_mask=None, scaling=0.3, is_causal=False)
    assert (whole.device.type, whole.tolist()) == ("cpu", [0, sum(LENGTHS)])
    torch.testing.assert_close(found, within_each(*rows))


def test_equal_neighbours_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        packed.F,
        "scaled_dot_product_attention",
        lambda q, *a, **k: seen.append(q.shape) or attend(q, *a, **k),
    )
    with packed.segments(LENGTHS, "cpu", None):
        packed.packed_attention(None, *batch("cpu"), scaling=0.3)
    assert [(shape[0], shape[2]) for shape in seen] == [(3, 5), (1, 12), (1, 1), (1, 5), (2, 7)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpus_own_attention_over_segments() -> None:
    varlen = packed.load_varlen("cuda", torch.bfloat16, 4, 72)
    assert varlen is not None
    rows = batch("cuda", torch.bfloat16)
    with packed.segments(LENGTHS, "cuda", varlen):
        found, _ = packed.packed_attention(None, *rows, scaling=0.3)
    torch.testing.assert_close(
        found.float(), within_each(*(part.float() for part in rows)), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "reason"),
    [
        (torch.float32, 72, (9, 0), "it takes float16 and bfloat16, not torch.float32"),
        (torch.bfloat16, 76, (9, 0), "in steps of 8, not 76"),
        (torch.bfloat16, 264, (9, 0), "heads of at most 256"),
        (torch.float16, 64, (7, 5), r"capability \(7, 5\) is too old"),
    ],
)
def test_heads_that_it_cannot_serve_have_one_line(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: torch.dtype,
    head_dim: int,
    capability: tuple[int, int],
    reason: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert packed.load_varlen("cuda:0", dtype, 2, head_dim) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(reason, record.getMessage())


def test_a_kernel_that_fails_when_tried_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(packed, "_try", fails)
    assert packed.load_varlen("cuda:0", torch.bfloat16, 2, 64) is None
    assert "no kernel image is available" in caplog.text


def test_a_cpu_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    assert packed.load_varlen("cpu", torch.float32, 2, 64) is None
    assert caplog.records == []
