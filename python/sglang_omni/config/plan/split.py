"""Tensor-parallel sizes that divide a decoder evenly, from the numbers in its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SPLIT_EVENLY = (
    "num_attention_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


def check_split(fields: Mapping[str, Any], ranks: int) -> None:
    """Check that a decoder can be split over this many ranks.

    Args:
        fields: The fields of the decoder's ``config.json``; a missing one counts as 0.
        ranks: The number of ranks.

    Raises:
        ValueError: A dimension of the model cannot be split evenly.
    """
    for name in _SPLIT_EVENLY:
        _check(name, fields.get(name) or 0, ranks)
    kv_heads = fields.get("num_key_value_heads") or fields.get("num_attention_heads") or ranks
    # With fewer key-value heads than ranks, several ranks have the same one.
    if ranks % kv_heads:
        _check("num_key_value_heads", kv_heads, ranks)


def possible_splits(fields: Mapping[str, Any]) -> list[int]:
    """Every number of ranks over which the decoder can be split, in ascending order."""
    possible = []
    for ranks in range(1, (fields.get("num_attention_heads") or 0) + 1):
        try:
            check_split(fields, ranks)
        except ValueError:
            continue
        possible.append(ranks)
    return possible


def _check(name: str, total: int, ranks: int) -> None:
    if total % ranks:
        raise ValueError(f"tp_size={ranks} does not divide the model's {name} ({total})")
