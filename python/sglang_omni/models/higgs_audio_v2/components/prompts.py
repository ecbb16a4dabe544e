"""Prompts of Higgs Audio v2: a scene, and a conversation whose answers are speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sglang_omni.models.frames.delay import DelayPattern
from sglang_omni.models.frames.earlier import SpokenTurn
from sglang_omni.models.frames.speaking import Speech
from sglang_omni.models.frames.speech import PromptOpening
from sglang_omni.models.frames.state import FramePrompt
from sglang_omni.models.higgs_audio_v2.components.checkpoint import HiggsCheckpoint
from sglang_omni.models.higgs_audio_v2.request_params import VOICES
from sglang_omni.preprocessing.deadline import Check
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.preprocessing.tokenizing import TextTokenizer

_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
_TASK = "Generate audio following instruction."
# The authors' own.
_SCENE = "Audio is recorded from a quiet room."


class HiggsTurns:
    """A ``SpokenModel``. Texts are the user's; what a request calls ``instructions`` describes the scene."""

    voices: Sequence[str] = VOICES
    least_samples = 0
    needs_recording = False
    needs_reference_text = True

    def __init__(self, checkpoint: HiggsCheckpoint, *, sample_rate: int, frame_samples: int) -> None:
        """
        Args:
            sample_rate: Of the codec, in Hz.
            frame_samples: Samples of a frame.
        """
        self.context_length = checkpoint.decoder.max_position_embeddings
        self.sample_rate, self.frame_samples = sample_rate, frame_samples
        self._tokenizer = TextTokenizer(load_tokenizer(checkpoint.path))
        # The pattern's further rows, and what closes the turn.
        self.turn_positions = checkpoint.pattern.num_code_groups + 1 + len(closing(checkpoint))

    def opening(self, voice: str, params: Mapping[str, Any], check: Check) -> PromptOpening:
        scene = (params.get("instructions") or "").strip() or _SCENE
        text = self._tokenizer.encode(
            f"<|begin_of_text|>{_HEADER.format('system')}{_TASK}\n\n<|scene_desc_start|>\n"
            f"{self._tokenizer.hide(scene)}\n<|scene_desc_end|><|eot_id|>",
            check=check,
        )
        return PromptOpening(text)

    def turn(self, voice: str, text: str, check: Check) -> list[int]:
        said = self._tokenizer.hide(text.strip())
        return self._tokenizer.encode(
            f"{_HEADER.format('user')}{said}<|eot_id|>{_HEADER.format('assistant')}<|audio_out_bos|>",
            check=check,
        )


def closing(checkpoint: HiggsCheckpoint) -> list[int]:
    """The tokens after a turn's rows of codes."""
    ids: list[int] = (
        load_tokenizer(checkpoint.path).encode("<|audio_eos|><|eot_id|>", add_special_tokens=False).ids
    )
    return ids


class HiggsPrompts:
    """Makes prompts of turns, each a user's text and its speech, and a text to speak."""

    def __init__(self, checkpoint: HiggsCheckpoint) -> None:
        self._pattern: DelayPattern = checkpoint.pattern
        self._closing = closing(checkpoint)

    def __call__(self, speech: Speech, turns: Sequence[SpokenTurn], text: list[int]) -> FramePrompt:
        rows: list[int | Tensor] = [*speech.opening]
        for turn in turns:
            rows += [*turn.text, *self._pattern.delayed(turn.frames).unbind(), *self._closing]
        return FramePrompt([*rows, *text])
