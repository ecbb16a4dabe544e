"""The shape of Higgs Audio v2's decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig


def decoder_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """The shape of the model's decoder: Llama's, with norms and an MLP of their own for audio."""
    # It brings torch.
    from sglang_omni.model_runner.config import DecoderConfig

    known = DecoderConfig.from_dict({**fields, "eos_token_id": None}, "llama")
    return replace(known, dual_ffn=True)
