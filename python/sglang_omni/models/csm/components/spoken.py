"""CSM's turns: what is said in a voice, as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_omni.models.csm.components.checkpoint import CsmCheckpoint
from sglang_omni.models.csm.request_params import SPEAKERS
from sglang_omni.models.frames.speech import PromptOpening
from sglang_omni.preprocessing.deadline import Check
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.preprocessing.tokenizing import TextTokenizer


class CsmTurns:
    """A ``SpokenModel``. A turn is ``[speaker]text`` between the tokenizer's own tokens of start and end."""

    voices: Sequence[str] = SPEAKERS
    # The frame of end codes.
    turn_positions = 1
    least_samples = 0
    needs_recording = False
    needs_reference_text = True

    def __init__(self, checkpoint: CsmCheckpoint) -> None:
        self.context_length = checkpoint.backbone.max_position_embeddings
        self.sample_rate, self.frame_samples = checkpoint.sample_rate, checkpoint.frame_samples
        self._tokenizer = TextTokenizer(load_tokenizer(checkpoint.path))

    def opening(self, voice: str, params: Mapping[str, Any], check: Check) -> PromptOpening:
        return PromptOpening([])

    def turn(self, voice: str, text: str, check: Check) -> list[int]:
        hidden = self._tokenizer.hide(f"[{voice}]{text}")
        return self._tokenizer.encode(hidden, add_special_tokens=True, check=check)
