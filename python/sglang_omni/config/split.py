"""Over how many ranks a decoder can be split, told from the numbers in its ``config.json``."""

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
    """
    Args:
        fields: Those of the decoder's ``config.json``; one that is missing counts as 0.

    Raises:
        ValueError: Some dimension of the model cannot be split evenly.
    """
    for name in _SPLIT_EVENLY:
        _check(name, fields.get(name) or 0, ranks)
    kv_heads = fields.get("num_key_value_heads") or fields.get("num_attention_heads") or ranks
    # If there are fewer of them than ranks, several ranks have the same one.
    if ranks % kv_heads:
        _check("num_key_value_heads", kv_heads, ranks)


def possible_splits(fields: Mapping[str, Any]) -> list[int]:
    """Every number of ranks that ``check_split`` takes, 1 first."""
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
