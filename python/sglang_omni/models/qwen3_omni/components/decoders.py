"""The checkpoint's two autoregressive decoders, as engines take them."""

from __future__ import annotations

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint


def thinker_decoder(checkpoint: Qwen3OmniCheckpoint, *, for_speech: bool) -> DecoderSpec:
    """Tokens and media -> text.

    Args:
        for_speech: Whether a talker listens, who wants hidden states of the media tokens.
    """
    thinker = checkpoint.thinker_config
    fields = {
        **thinker["text_config"],
        # What transformers ties by; the text's own field says nothing there.
        "tie_word_embeddings": thinker.get("tie_word_embeddings", False),
        "eos_token_id": checkpoint.tokens.im_end,
    }
    return DecoderSpec(
        model_path=checkpoint.path,
        config=DecoderConfig.from_dict(fields),
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
    """Rows of the thinker's text and media -> the first code of every frame."""
    talker = checkpoint.require_talker()
    text = checkpoint.config["talker_config"]["text_config"]
    return DecoderSpec(
        model_path=checkpoint.path,
        config=DecoderConfig.from_dict({**text, "eos_token_id": talker.codec.eos}),
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
