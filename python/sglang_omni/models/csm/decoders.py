"""The shape of CSM's decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig


def decoder_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """The shape of one of the model's two decoders, both of which are Llama's."""
    # It brings torch.
    from sglang_omni.model_runner.config import DecoderConfig

    # transformers' theta for a config.json without it.
    fields = {"rope_theta": 500_000.0, **fields, "eos_token_id": None}
    return DecoderConfig.from_dict(fields, "llama")
