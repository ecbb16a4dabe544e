"""Specifications of the two autoregressive decoders of a checkpoint, for engines."""

from __future__ import annotations

from typing import Any, Literal

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.omni.checkpoint import MediaCheckpoint


def decoder_of(
    checkpoint: MediaCheckpoint[Any, Any],
    part: Literal["thinker", "talker"],
    config: DecoderConfig,
    *,
    embed: str = "embed_tokens",
    **options: Any,
) -> DecoderSpec:
    """The decoder of a checkpoint's thinker or talker.

    Args:
        config: Its shape.
        embed: The name of its table of embeddings.
        options: Further fields of the ``DecoderSpec``.
    """
    return DecoderSpec(
        model_path=checkpoint.path,
        config=config,
        weights=WeightNames(
            embed_tokens=f"{part}.model.{embed}.weight",
            layers=f"{part}.model.layers",
            norm=f"{part}.model.norm.weight",
            lm_head=f"{part}.lm_head.weight" if part == "thinker" else f"{part}.codec_head.weight",
        ),
        component=f"{part}.model.",
        **options,
    )
