"""How many tokens the KV cache of a language model may hold on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Share of a GPU's memory for weights and KV cache; the rest is for activations, graphs and workspace.
_SHARE = 0.85
# A cache for more tokens than this would only wait for requests.
_MOST_TOKENS = 4_000_000
_GIB = 2**30


def weight_bytes(model_path: Path) -> int:
    """Bytes of a checkpoint's safetensors files."""
    return sum(file.stat().st_size for file in model_path.glob("*.safetensors"))


def kv_bytes_per_token(fields: Mapping[str, Any], ranks: int, element_bytes: int) -> int:
    """Bytes that one token takes in the KV cache of one rank.

    Args:
        fields: The checkpoint's ``config.json``, or its part that describes the decoder.
        ranks: Tensor parallel ranks, over which the key-value heads are split.
        element_bytes: Bytes of one number of the cache.

    Raises:
        ValueError: The fields do not describe attention.
    """
    try:
        layers = int(fields["num_hidden_layers"])
        if fields.get("kv_lora_rank"):
            # Latent attention keeps one row, which every rank has.
            width = int(fields["kv_lora_rank"]) + int(fields["qk_rope_head_dim"])
            return layers * width * element_bytes
        heads = int(fields["num_attention_heads"])
        kv_heads = int(fields.get("num_key_value_heads") or heads)
        head_dim = int(fields.get("head_dim") or int(fields["hidden_size"]) // heads)
    except (KeyError, TypeError) as exc:
        raise ValueError(f"config.json does not tell the size of a token's keys and values: {exc!r}") from exc
    return 2 * layers * max(1, kv_heads // ranks) * head_dim * element_bytes


def kv_tokens(
    *, total_bytes: int, weights: int, bytes_per_token: int, ranks: int, share: float | None
) -> int:
    """Tokens for which there is room beside the weights on one GPU.

    Args:
        total_bytes: The GPU's memory.
        weights: Bytes of all weights, before they are split.
        bytes_per_token: From ``kv_bytes_per_token``.
        ranks: Tensor parallel ranks.
        share: Of the memory, for weights and KV cache; None for the default.

    Raises:
        ValueError: The weights leave no room.
    """
    room = int(total_bytes * (share or _SHARE)) - weights // ranks
    tokens = room // bytes_per_token
    if tokens < 1024:
        raise ValueError(
            f"the weights of {weights / _GIB:.1f} GiB leave no room for a KV cache on "
            f"{'a GPU' if ranks == 1 else f'{ranks} GPUs'} of {total_bytes / _GIB:.1f} GiB: give "
            "a --tp-size, a quantized checkpoint or --quantization fp8"
        )
    return min(tokens, _MOST_TOKENS)
