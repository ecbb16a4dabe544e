"""Specifications of the checkpoint's two autoregressive decoders, for engines."""

from __future__ import annotations

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.omni.decoders import decoder_of
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.shapes import talker_config, thinker_config


def thinker_decoder(checkpoint: Qwen25OmniCheckpoint, *, for_speech: bool) -> DecoderSpec:
    """The thinker: from tokens and media to text.

    Args:
        for_speech: True if a talker needs the last hidden states of all tokens.
    """
    config = thinker_config(checkpoint)
    layer = config.num_hidden_layers if for_speech else None
    return decoder_of(checkpoint, "thinker", config, capture_layer=layer, captures_all=for_speech)


def talker_decoder(checkpoint: Qwen25OmniCheckpoint, strategy: FeedbackStrategy) -> DecoderSpec:
    """The talker: from rows of the thinker's text and hidden states to codes."""
    config = talker_config(checkpoint)
    suppressed = checkpoint.require_talker().suppressed(config.vocab_size)
    return decoder_of(checkpoint, "talker", config, strategy=strategy, suppress_token_ids=suppressed)
