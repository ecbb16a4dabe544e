"""The preprocess stage of Qwen3-Omni."""

from __future__ import annotations

from sglang_omni.models.omni.preprocess import MediaPreprocessor
from sglang_omni.models.qwen3_omni.media import Qwen3MediaReader
from sglang_omni.models.qwen3_omni.positions import PositionRules


class Qwen3OmniPreprocessor(MediaPreprocessor[PositionRules]):
    """A ``MediaPreprocessor`` of Qwen3-Omni."""

    rules_class = PositionRules
    reader_class = Qwen3MediaReader
    audio_end = "<|audio_end|>"
