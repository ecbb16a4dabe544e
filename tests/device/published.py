"""Qwen3-Omni-30B-A3B's talker and codec with the published sizes, on the fake GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from fake_cuda import DEVICE
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sglang_omni.model_runner.code_predictor import CodePredictor, PredictorConfig
from sglang_omni.models.qwen3_omni.components.code2wav import Code2Wav
from sglang_omni.models.qwen3_omni.components.reference import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavConfig,
)
from sglang_omni.models.qwen3_omni.components.talker_strategy import (
    Qwen3TalkerStrategy,
    TalkerWeights,
    _Projection,
)

DTYPE = torch.bfloat16
PREDICTOR = PredictorConfig(
    vocab_size=2048,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=5,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    num_code_groups=16,
    qk_norm=True,
)
# First codes, and hidden sizes of the thinker and of its projections.
VOCAB, THINKER_HIDDEN, INNER = 3072, 2048, 2048
EOS = 2150


class _Weights:
    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        return on_gpu(*shape)


def on_gpu(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=DTYPE, device=DEVICE)


def predictor() -> CodePredictor:
    size = (PREDICTOR.vocab_size, PREDICTOR.hidden_size)
    groups = PREDICTOR.num_code_groups
    embeddings, heads = [on_gpu(*size)] * (groups - 2), [on_gpu(*size)] * (groups - 1)
    return CodePredictor.from_checkpoint(PREDICTOR, _Weights(), "m", embeddings, heads)  # type: ignore[arg-type]


def talker_strategy() -> Qwen3TalkerStrategy:
    hidden, groups = PREDICTOR.hidden_size, PREDICTOR.num_code_groups
    projection = _Projection(
        on_gpu(INNER, THINKER_HIDDEN), on_gpu(INNER), on_gpu(hidden, INNER), on_gpu(hidden)
    )
    weights = TalkerWeights(
        thinker_embed=torch.empty(151_936, THINKER_HIDDEN, dtype=DTYPE),
        text_projection=projection,
        hidden_projection=projection,
        embed=on_gpu(VOCAB + (groups - 1) * PREDICTOR.vocab_size, hidden),
        predictor=predictor(),
    )
    offsets = torch.tensor([0, *[VOCAB] * (groups - 1)]).to(DEVICE)
    return Qwen3TalkerStrategy(weights, offsets, eos_id=EOS, tts_eos_id=151_673, tts_pad_id=151_671)


def code2wav() -> Code2Wav:
    # The class's defaults are the published sizes.
    config = Qwen3OmniMoeCode2WavConfig(attn_implementation="sdpa")
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device(DEVICE):
            module = Qwen3OmniMoeCode2Wav(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return Code2Wav(module.eval())


class _OneKernel(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention and _has_kernel(*args, **(kwargs or {})):
            return torch.empty_like(args[0])
        if func is Tensor.numpy:
            return np.zeros(tuple(args[0].shape), np.float32)
        return func(*args, **(kwargs or {}))


def _has_kernel(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attn_mask: Tensor | None = None,
    *,
    enable_gqa: bool = False,
    **_: Any,
) -> bool:
    """True if torch has a kernel on GPUs that keeps no scores, by ``sdp_utils.cpp`` without cuDNN: flash
    attention takes no mask and half precision alone, the other one as many heads of keys as of queries."""
    is_flash = attn_mask is None and queries.dtype in (torch.bfloat16, torch.float16)
    return is_flash or not enable_gqa


@contextmanager
def flash_attention() -> Iterator[None]:
    """Attention is one kernel where it is on a GPU; a fake one would get torch's way for CPUs, which is nine.

    Arrays of fake tensors on the host are zeros, as fake tensors have none.
    """
    with _OneKernel():
        yield
