"""The preprocess stage of Qwen2.5-Omni, which gives spoken answers the system prompt that they need."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.multimodal.media import MediaLimits
from sglang_omni.models.multimodal.preprocess import MEDIA_KINDS, MediaPreprocessor
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.media import VIDEO_FPS, TimeAlignedReader
from sglang_omni.models.qwen2_5_omni.positions import TimeAlignedRules, position_limits
from sglang_omni.preprocessing.messages import MediaKind
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import OmniRequest

# Without it the published talkers may not speak as they should.
SPEECH_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory "
    "and visual inputs, as well as generating text and speech."
)


class TimeAlignedPreprocessor(MediaPreprocessor):
    """A ``MediaPreprocessor`` with a checkpoint's parts.

    Args:
        limits: Of a request's media; None for the defaults.
        takes: Accepted kinds of media.
        video_fps: Frames to take of each second of a video if the request does not tell; None takes all.
        context_length: A shorter context than the checkpoint's.
        allowed_media_hosts: Hosts of media URLs, as in ``media_bytes``.
        tool_call_parser, reasoning_parser: As for ``ChatPrompts``.
    """

    def __init__(
        self,
        checkpoint: Qwen25OmniCheckpoint,
        *,
        limits: MediaLimits | None = None,
        takes: Collection[MediaKind] = MEDIA_KINDS,
        video_fps: float | None = VIDEO_FPS,
        context_length: int | None = None,
        allowed_media_hosts: Collection[str] = (),
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        prompts = PromptEncoder(checkpoint.path, context_length=context_length)
        rules = TimeAlignedRules.from_config(checkpoint.thinker_config, checkpoint.tokens)
        super().__init__(
            prompts,
            ChatPrompts(prompts, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser),
            rules,
            position_limits(checkpoint, rules),
            TimeAlignedReader(checkpoint.path, rules, limits or MediaLimits(), allowed_media_hosts)
            if takes
            else None,
            audio_end="<|audio_eos|>",
            takes=takes,
            video_fps=video_fps,
        )

    def _conversation(self, conversation: list[dict[str, Any]], request: OmniRequest) -> list[dict[str, Any]]:
        if not answers_in_speech(request) or any(message["role"] == "system" for message in conversation):
            return conversation
        return [{"role": "system", "content": [SPEECH_PROMPT]}, *conversation]
