"""The preprocess stage of Qwen2.5-Omni, which gives spoken answers the system prompt that they need."""

from __future__ import annotations

from typing import Any

from sglang_omni.models.omni.preprocess import MediaPreprocessor
from sglang_omni.models.qwen2_5_omni.media import Qwen25MediaReader
from sglang_omni.models.qwen2_5_omni.positions import Qwen25PositionRules
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import OmniRequest

# Without it the published talkers may not speak as they should.
SPEECH_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory "
    "and visual inputs, as well as generating text and speech."
)


class Qwen25Preprocessor(MediaPreprocessor[Qwen25PositionRules]):
    """A ``MediaPreprocessor`` of Qwen2.5-Omni."""

    rules_class = Qwen25PositionRules
    reader_class = Qwen25MediaReader
    audio_end = "<|audio_eos|>"

    def _conversation(self, conversation: list[dict[str, Any]], request: OmniRequest) -> list[dict[str, Any]]:
        if not answers_in_speech(request) or any(message["role"] == "system" for message in conversation):
            return conversation
        return [{"role": "system", "content": [SPEECH_PROMPT]}, *conversation]
