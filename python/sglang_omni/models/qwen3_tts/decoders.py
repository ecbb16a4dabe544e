"""The shape of Qwen3-TTS's decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig


def decoder_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """The shape of the talker or of the code predictor, both of which are Qwen3's.

    ``rope_scaling`` of a talker splits its channels among three axes. All that it reads is in one row of
    time, in which the three positions are equal: it turns as if there were one.
    """
    # It brings torch.
    from sglang_omni.model_runner.config import DecoderConfig

    scaling = dict(fields.get("rope_scaling") or {})
    if "mrope_section" in scaling:
        scaling = {}
    own = {"rope_scaling": scaling or None, "eos_token_id": fields.get("codec_eos_token_id")}
    return DecoderConfig.from_dict({**fields, **own}, "qwen3")
