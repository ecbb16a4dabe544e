"""Kept for saved configs; these functions are in ``models.omni.routing``."""

from sglang_omni.models.omni.routing import (
    after_preprocess,
    sources_of_decode,
    sources_of_thinker,
    terminal_stages,
    thinker_stream_ends,
    to_audio_encoder,
    to_code2wav,
    to_image_encoder,
    to_talker,
    to_thinker,
)

__all__ = [
    "after_preprocess",
    "sources_of_decode",
    "sources_of_thinker",
    "terminal_stages",
    "thinker_stream_ends",
    "to_audio_encoder",
    "to_code2wav",
    "to_image_encoder",
    "to_talker",
    "to_thinker",
]
