"""What the encoders of the published checkpoint cost the host of a GPU: it is never read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from torch._subclasses.fake_tensor import unset_fake_temporarily

from sglang_omni.model_runner.loader import Checkpoint, load_module, weights_on_meta
from sglang_omni.models.omni import audio_tower, vision_tower
from sglang_omni.models.qwen3_omni.components import vision

VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "out_hidden_size": 2048,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
AUDIO = {
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "d_model": 1280,
    "num_mel_bins": 128,
    "n_window": 50,
    "n_window_infer": 800,
    "downsample_hidden_size": 480,
    "output_dim": 2048,
}


class Weights:
    """A checkpoint that has every tensor."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        return torch.empty(*shape, dtype=self.dtype).to(DEVICE)


@pytest.fixture(autouse=True)
def modules_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    # The attention over segments is tried on the fake GPU.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)

    def load(path: Any, prefix: str, build: Callable[[], Any], dtype: torch.dtype, device: str) -> Any:
        with weights_on_meta():
            module = build()
        load_module(cast(Checkpoint, Weights(dtype)), module, prefix)
        # As module.to(device), which fake parameters do not survive.
        for name, buffer in list(module.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, buffer.to(device))
        return module

    where = vision.VisionEncoder._places

    def places(encoder: vision.VisionEncoder, sizes: torch.Tensor) -> dict[str, torch.Tensor]:
        with unset_fake_temporarily():  # The host's own arithmetic needs numbers.
            real = where(encoder, torch.tensor(VISUALS))
        return {name: torch.empty(place.shape, dtype=place.dtype) for name, place in real.items()}

    monkeypatch.setattr(vision.VisionEncoder, "_places", places)
    for module in (vision_tower, audio_tower):
        monkeypatch.setattr(module, "load_component", load)


def visual(*grid: int) -> Any:
    t, h, w = grid
    return {"key": b"k", "pixel_values": torch.zeros(t * h * w, 3 * 2 * 16 * 16), "grid_thw": grid}


def clip(frames: int) -> Any:
    return {"key": b"k", "input_features": torch.zeros(128, frames), "window_frames": 100}


# Two pictures and eight frames, which are four pairs.
VISUALS = [(1, 32, 48), (1, 20, 20), (4, 24, 24)]
CLIPS = [1000, 260]


def encoded(kind: str, dtype: torch.dtype) -> tuple[Step, list[Any]]:
    with fake_gpu():
        encoder: Any
        if kind == "vision":
            encoder = vision.VisionEncoder("", VISION, dtype, DEVICE)
            items, rows = [visual(*grid) for grid in VISUALS], sum(t * h * w for t, h, w in VISUALS)
        else:
            encoder = audio_tower.AudioEncoder.from_checkpoint("", "", AUDIO, dtype, DEVICE)
            items, rows = [clip(frames) for frames in CLIPS], 13 * 10 + 13 * 2 + 8
        # The one number that is read, on the host: how many rows transformers should split off.
        with Step(rows) as step:
            # Without its inference mode, in which operations are counted before they are taken apart.
            outputs = type(encoder).encode.__wrapped__(encoder, items)
        return step, [[tuple(level.shape) for level in output] for output in outputs]


@pytest.mark.parametrize(
    ("kind", "launches", "uploads"),
    # Uploads: each visual's patches or all clips, three of places or one, and the bounds of the segments.
    [("vision", 721, len(VISUALS) + 4), ("audio", 435, 3)],
)
def test_a_batch_reads_nothing_from_the_gpu(kind: str, launches: int, uploads: int) -> None:
    step, shapes = encoded(kind, torch.bfloat16)
    layers = {"vision": VISION["depth"], "audio": AUDIO["encoder_layers"]}[kind]
    assert step.host_reads == 0
    assert step.uploads <= uploads
    assert step.launches["_varlen_attn"] == layers, "all segments at once"
    assert step.num_launches <= launches
    if kind == "vision":
        assert shapes == [[(t * h * w // 4, 2048)] * 4 for t, h, w in VISUALS]
    else:
        assert shapes == [[(130, 2048)], [(34, 2048)]]


@pytest.mark.parametrize("kind", ["vision", "audio"])
def test_without_attention_over_segments_nothing_is_read_either(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    step, _ = encoded(kind, torch.float32)
    assert step.host_reads == 0
    assert "_varlen_attn" not in step.launches
    (line,) = caplog.messages
    assert "it takes float16 and bfloat16, not torch.float32" in line
