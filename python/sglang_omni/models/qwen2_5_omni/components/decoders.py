"""Specifications of the checkpoint's two autoregressive decoders, for engines."""

from __future__ import annotations

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.shapes import talker_config, thinker_config


def thinker_decoder(checkpoint: Qwen25OmniCheckpoint, *, for_speech: bool) -> DecoderSpec:
    """The thinker: from tokens and media to text.

    Args:
        for_speech: Whether a talker needs the last hidden states of all tokens.
    """
    config = thinker_config(checkpoint)
    return DecoderSpec(
        model_path=checkpoint.path,
        config=config,
        weights=WeightNames(
            embed_tokens="thinker.model.embed_tokens.weight",
            layers="thinker.model.layers",
            norm="thinker.model.norm.weight",
            lm_head="thinker.lm_head.weight",
        ),
        component="thinker.model.",
        capture_layer=config.num_hidden_layers if for_speech else None,
        captures_all=for_speech,
    )


def talker_decoder(checkpoint: Qwen25OmniCheckpoint, strategy: FeedbackStrategy) -> DecoderSpec:
    """The talker: from rows of the thinker's text and hidden states to codes."""
    config = talker_config(checkpoint)
    return DecoderSpec(
        model_path=checkpoint.path,
        config=config,
        weights=WeightNames(
            embed_tokens="talker.model.embed_tokens.weight",
            layers="talker.model.layers",
            norm="talker.model.norm.weight",
            lm_head="talker.codec_head.weight",
        ),
        component="talker.model.",
        strategy=strategy,
        suppress_token_ids=checkpoint.require_talker().suppressed(config.vocab_size),
    )
