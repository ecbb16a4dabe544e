"""Qwen3-Omni's code2wav at its published size; a small one on a CPU."""

from __future__ import annotations

import torch
from bench import Bench

from sglang_omni.models.qwen3_omni.components.code2wav import Code2Wav
from sglang_omni.models.qwen3_omni.components.reference import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavConfig,
)


def run(bench: Bench) -> None:
    torch.manual_seed(0)
    # The defaults are the published model's.
    small = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "decoder_dim": 192}
    config = Qwen3OmniMoeCode2WavConfig(**({} if bench.on_gpu else small), attn_implementation="sdpa")
    module = Qwen3OmniMoeCode2Wav(config).to(bench.device).requires_grad_(False).eval()
    dtypes = (torch.float32, torch.bfloat16) if bench.on_gpu else (torch.float32,)
    # Pieces and the whole have other shapes, and so other kernels: TF32 would round them differently.
    torch.backends.cudnn.allow_tf32 = False
    waves = {}
    for dtype in dtypes:
        codec = Code2Wav(module.to(dtype))
        codec.record_graphs((2, 2, 25), 400, cuda_graph=bench.on_gpu)
        name = str(dtype).removeprefix("torch.")
        for frames in (2, 25):
            for count in (1, 8, 16) if bench.on_gpu else (1,):
                _measure(bench, codec, config, name, frames, count)
        waves[name] = _whole(bench, codec, config)
    if len(waves) == 2:
        exact, rough = waves["float32"], waves["bfloat16"].float()
        error = float((exact - rough).norm() / exact.norm())
        bench.row("codec", "error of bfloat16 beside float32", error, "of the norm")


def _codes(config: Qwen3OmniMoeCode2WavConfig, count: int, frames: int, device: str) -> torch.Tensor:
    drawn = torch.randint(config.codebook_size, (count, config.num_quantizers, frames))
    return drawn.to(device)


def _measure(
    bench: Bench, codec: Code2Wav, config: Qwen3OmniMoeCode2WavConfig, dtype: str, frames: int, count: int
) -> None:
    codes = _codes(config, count, frames, bench.device)
    streams = [codec.open_stream() for _ in range(count)]
    with torch.inference_mode():
        codec.decode_batch(streams, codes)
        taken = bench.milliseconds(lambda: codec.decode_batch(streams, codes).cpu())
    sound = frames * codec.total_upsample / 24.0
    bench.row(
        "codec", f"{frames} frames of {count} streams, {dtype}", taken, "ms", f"{sound:.0f} ms of sound each"
    )


def _whole(bench: Bench, codec: Code2Wav, config: Qwen3OmniMoeCode2WavConfig) -> torch.Tensor:
    """A stream in pieces must be what decoding all at once gives."""
    torch.manual_seed(1)
    codes = _codes(config, 1, 29, bench.device)
    with torch.inference_mode():
        whole = codec(codes)
        stream = codec.open_stream()
        pieces = [stream.decode(codes[..., a:b]) for a, b in ((0, 2), (2, 4), (4, 29))]
    joined = torch.cat(pieces, dim=-1)
    error = float((joined - whole[..., : joined.shape[-1]]).abs().max())
    bound = 1e-4 if joined.dtype == torch.float32 else 5e-2
    dtype = str(joined.dtype).removeprefix("torch.")
    bench.check("codec", f"pieces equal the whole, {dtype}, within {bound:g}", error < bound, f"{error:g}")
    return joined.cpu()
