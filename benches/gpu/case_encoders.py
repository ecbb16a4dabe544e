"""Qwen3-Omni's encoders at their published size: times, and how often the host waits for the GPU."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench import Bench
from safetensors.torch import save_file

from sglang_omni.models.omni.audio_tower import AudioEncoder
from sglang_omni.models.omni.reference import Qwen3OmniMoeAudioEncoder, Qwen3OmniMoeAudioEncoderConfig
from sglang_omni.models.qwen3_omni.components.reference import (
    Qwen3OmniMoeVisionEncoder,
    Qwen3OmniMoeVisionEncoderConfig,
)
from sglang_omni.models.qwen3_omni.components.vision import VisionEncoder

# What transformers' defaults are not.
_VISION = {"out_hidden_size": 2048}
_AUDIO = {"output_dim": 2048}
_SMALL_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "out_hidden_size": 32,
}
_SMALL_VISION |= {"deepstack_visual_indexes": [0, 1]}
_SMALL_AUDIO = {"encoder_layers": 2, "d_model": 64, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
_SMALL_AUDIO |= {"output_dim": 32, "downsample_hidden_size": 32}


def run(bench: Bench) -> None:
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        vision = _VISION if bench.on_gpu else _SMALL_VISION
        module = _random(Qwen3OmniMoeVisionEncoder, Qwen3OmniMoeVisionEncoderConfig(**vision))
        _write(module, "thinker.visual.", Path(folder), dtype)
        encoder = VisionEncoder(folder, vision, dtype, bench.device)
        width = 3 * 2 * 16 * 16
        for name, grid in (("an image of 448 x 448", (1, 28, 28)), ("a video of 16 s", (16, 20, 36))):
            patches = torch.randn(grid[0] * grid[1] * grid[2], width)
            item: Any = {"key": b"", "kind": "image", "pixel_values": patches, "grid_thw": grid}
            _measure(bench, name, lambda item=item: encoder.encode([item]))
    with tempfile.TemporaryDirectory() as folder:
        audio = _AUDIO if bench.on_gpu else _SMALL_AUDIO
        module = _random(Qwen3OmniMoeAudioEncoder, Qwen3OmniMoeAudioEncoderConfig(**audio))
        _write(module, "thinker.audio_tower.", Path(folder), dtype)
        ears = AudioEncoder.from_checkpoint(folder, "thinker.audio_tower.", audio, dtype, bench.device)
        for seconds in (2, 30):
            mel = torch.randn(128, 100 * seconds)
            clip: Any = {"key": b"", "input_features": mel, "window_frames": min(100 * seconds, 200)}
            _measure(bench, f"a clip of {seconds} s", lambda clip=clip: ears.encode([clip]))


def _random(kind: Callable[[Any], torch.nn.Module], config: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(config)


def _write(module: torch.nn.Module, prefix: str, folder: Path, dtype: torch.dtype) -> None:
    tensors = {prefix + name: tensor.to(dtype).contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")


def _measure(bench: Bench, name: str, work: Callable[[], Any]) -> None:
    bench.row("encoders", name, bench.milliseconds(work), "ms")
    if not bench.on_gpu:
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    bench.row("encoders", f"{name}: waits of the host", waits, "times")
