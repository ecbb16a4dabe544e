"""What the stages of Fish Audio S2-Pro hand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_omni.models.codecs.mimi import VoiceRecording


class SpeechInput(TypedDict):
    """preprocess -> dual_ar, or by way of voice_encoder if there is a recording.

    Attributes:
        passages: Token ids of each passage of the text.
        voice_text: Token ids of what the voice says; empty without a voice.
        voice_samples: A recording, whose codes are not known yet.
        voice_codes: (frames, groups) int64; None without a voice.
    """

    passages: list[list[int]]
    voice_text: list[int]
    voice_samples: VoiceRecording | None
    voice_codes: Tensor | None
