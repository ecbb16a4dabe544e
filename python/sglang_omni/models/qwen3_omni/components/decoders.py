"""Specifications of the checkpoint's two autoregressive decoders, for engines."""

from __future__ import annotations

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.omni.decoders import decoder_of
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.shapes import talker_config, thinker_config


def thinker_decoder(checkpoint: Qwen3OmniCheckpoint, *, for_speech: bool) -> DecoderSpec:
    """The thinker: from tokens and media to text.

    Args:
        for_speech: True if a talker needs the hidden states of media tokens.
    """
    layer = checkpoint.require_talker().accept_hidden_layer if for_speech else None
    return decoder_of(checkpoint, "thinker", thinker_config(checkpoint), capture_layer=layer)


def talker_decoder(checkpoint: Qwen3OmniCheckpoint, strategy: FeedbackStrategy) -> DecoderSpec:
    """The talker: from rows of the thinker's text and media to the first code of each frame."""
    talker = checkpoint.require_talker()
    return decoder_of(
        checkpoint,
        "talker",
        talker_config(checkpoint),
        embed="codec_embedding",
        strategy=strategy,
        suppress_token_ids=talker.suppressed,
    )
