"""Specifications of the checkpoint's two autoregressive decoders, for engines."""

from __future__ import annotations

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.shapes import talker_config, thinker_config


def thinker_decoder(checkpoint: Qwen3OmniCheckpoint, *, for_speech: bool) -> DecoderSpec:
    """The thinker: from tokens and media to text.

    Args:
        for_speech: Whether a talker needs the hidden states of media tokens.
    """
    return DecoderSpec(
        model_path=checkpoint.path,
        config=thinker_config(checkpoint),
        weights=WeightNames(
            embed_tokens="thinker.model.embed_tokens.weight",
            layers="thinker.model.layers",
            norm="thinker.model.norm.weight",
            lm_head="thinker.lm_head.weight",
        ),
        component="thinker.model.",
        capture_layer=checkpoint.require_talker().accept_hidden_layer if for_speech else None,
    )


def talker_decoder(checkpoint: Qwen3OmniCheckpoint, strategy: FeedbackStrategy) -> DecoderSpec:
    """The talker: from rows of the thinker's text and media to the first code of each frame."""
    talker = checkpoint.require_talker()
    return DecoderSpec(
        model_path=checkpoint.path,
        config=talker_config(checkpoint),
        weights=WeightNames(
            embed_tokens="talker.model.codec_embedding.weight",
            layers="talker.model.layers",
            norm="talker.model.norm.weight",
            lm_head="talker.codec_head.weight",
        ),
        component="talker.model.",
        strategy=strategy,
        suppress_token_ids=talker.suppressed,
    )
