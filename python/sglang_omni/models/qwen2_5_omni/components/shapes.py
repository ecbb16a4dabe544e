"""The shapes of the checkpoint's two autoregressive decoders, read without importing torch."""

from __future__ import annotations

from sglang_omni.model_runner.config import DENSE_TALKER, DENSE_THINKER, DecoderConfig
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint


def thinker_config(checkpoint: Qwen25OmniCheckpoint) -> DecoderConfig:
    """The thinker's shape."""
    return checkpoint.thinker_shape(DENSE_THINKER)


def talker_config(checkpoint: Qwen25OmniCheckpoint) -> DecoderConfig:
    """The talker's shape.

    Raises:
        ValueError: The checkpoint has no talker.
    """
    speech = checkpoint.require_talker()
    fields = dict(checkpoint.config["talker_config"])
    fields.pop("tie_word_embeddings", None)
    return DecoderConfig.from_dict({"head_dim": 128, **fields, "eos_token_id": speech.ends}, DENSE_TALKER)
