"""The preprocess stage of Qwen3-Omni."""

from __future__ import annotations

from collections.abc import Collection

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.multimodal.media import MediaLimits
from sglang_omni.models.multimodal.preprocess import MEDIA_KINDS, MediaPreprocessor
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.media import Qwen3MediaReader
from sglang_omni.models.qwen3_omni.positions import PositionRules, position_limits
from sglang_omni.preprocessing.messages import MediaKind
from sglang_omni.preprocessing.text import PromptEncoder


class Qwen3OmniPreprocessor(MediaPreprocessor):
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
        checkpoint: Qwen3OmniCheckpoint,
        *,
        limits: MediaLimits | None = None,
        takes: Collection[MediaKind] = MEDIA_KINDS,
        video_fps: float | None = None,
        context_length: int | None = None,
        allowed_media_hosts: Collection[str] = (),
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        prompts = PromptEncoder(checkpoint.path, context_length=context_length)
        rules = PositionRules.from_config(checkpoint.thinker_config, checkpoint.tokens)
        super().__init__(
            prompts,
            ChatPrompts(prompts, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser),
            rules,
            position_limits(checkpoint, rules),
            Qwen3MediaReader(checkpoint.path, rules, limits or MediaLimits(), allowed_media_hosts)
            if takes
            else None,
            audio_end="<|audio_end|>",
            takes=takes,
            video_fps=video_fps,
        )
