"""The shapes of the checkpoint's two autoregressive decoders, read without importing torch."""

from __future__ import annotations

from sglang_omni.model_runner.config import TALKER, THINKER, DecoderConfig
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint


def thinker_config(checkpoint: Qwen3OmniCheckpoint) -> DecoderConfig:
    """The thinker's shape."""
    return checkpoint.thinker_shape(THINKER)


def talker_config(checkpoint: Qwen3OmniCheckpoint) -> DecoderConfig:
    """The talker's shape. Its text_config is published without ``model_type`` and ``tie_word_embeddings``.

    Raises:
        ValueError: The checkpoint has no talker.
    """
    end = checkpoint.require_talker().codec.eos
    talker = checkpoint.config["talker_config"]
    fields = {
        **talker["text_config"],
        "tie_word_embeddings": talker.get("tie_word_embeddings", False),
        "eos_token_id": end,
    }
    return DecoderConfig.from_dict(fields, TALKER)
