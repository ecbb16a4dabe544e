"""Models of published sizes with random weights, made on the device: nothing is downloaded or read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sglang_omni.model_runner.loader import Checkpoint

# config.json of Qwen/Qwen3-0.6B, and of the decoder of Qwen/Qwen3-30B-A3B, cut to 8 of its 48 layers.
QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
QWEN3_30B_8_LAYERS = {
    **QWEN3_06B,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}


class RandomCheckpoint(Checkpoint):
    """Gives a random tensor for every name, on the device that it was made for."""

    def __init__(
        self,
        model_path: str | Path,
        dtype: torch.dtype | None,
        component: str = "",
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._random_dtype = dtype or torch.float32
        self._random_device = device

    def __contains__(self, name: str) -> bool:
        return True

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        tensor = torch.empty(tuple(shape), dtype=self._random_dtype, device=self._random_device)
        return tensor.fill_(1.0) if "norm" in name else tensor.normal_(0.0, 0.02)

    def finish(self, *, optional: Sequence[str] = ()) -> None:
        """Every tensor is there, and none is left."""
