"""Conversations of every kind, and what a served answer to one must have in common with the oracle's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from qwen3_omni_oracle import Oracle, OracleAnswer
from sample_media import audio_part, image_part, picture, sound, text_part, user, video, video_part

# The reference cuts speech into pieces of 300 frames, which lose what the decoder cuts off each.
REFERENCE = {"code2wav": {"chunking": "reference"}}


@dataclass(frozen=True)
class Case:
    """One conversation. Limits are small: what differs, differs early."""

    name: str
    messages: list[dict[str, Any]]
    use_audio_in_video: bool = False
    max_tokens: int = 16
    max_frames: int = 12
    speaker: str = "Ethan"

    def expected(self, oracle: Oracle) -> OracleAnswer:
        return oracle.answer(
            self.messages,
            max_tokens=self.max_tokens,
            max_frames=self.max_frames,
            speaker=self.speaker,
            use_audio_in_video=self.use_audio_in_video,
        )

    def spoken_by(self, oracle: Oracle) -> tuple[Case, OracleAnswer]:
        """The case, worded so that this random talker says something, and the oracle's answer to it.

        transformers fails where the talker ends before its first frame.
        """
        *earlier, last = self.messages
        for ending in ("", " Go on.", " Tell me more.", " Why?", " And then?", " Is it so?"):
            content = [*last["content"], text_part(ending)] if ending else last["content"]
            case = replace(self, messages=[*earlier, {**last, "content": content}])
            try:
                return case, case.expected(oracle)
            except RuntimeError as error:
                if "non-empty TensorList" not in str(error):
                    raise
        raise RuntimeError(f"{oracle.path}: this talker says nothing to {self.name!r}, however it is asked")

    @property
    def params(self) -> dict[str, Any]:
        """Greedy throughout, as the oracle. The last code that is sampled never becomes a frame."""
        return {
            "temperature": 0.0,
            "talker_temperature": 0.0,
            "talker_max_new_tokens": self.max_frames + 1,
            "stage_params": REFERENCE,
        }

    @property
    def chat_body(self) -> dict[str, Any]:
        """A request to /v1/chat/completions whose answer tells tokens and codes."""
        return {
            "messages": self.messages,
            "modalities": ["text", "audio"],
            "audio": {"voice": self.speaker, "format": "wav"},
            "max_tokens": self.max_tokens,
            "use_audio_in_video": self.use_audio_in_video,
            "return_token_ids": True,
            **self.params,
        }


def all_cases() -> list[Case]:
    """Text, image, audio, image and audio, video, several images, three turns."""
    shown, other, third = picture(1), picture(2, 64, 150), picture(3, 200, 60)
    heard, second = sound(1), sound(2, seconds=2.3)
    assistant = {"role": "assistant", "content": "I see."}
    return [
        Case("text", [{"role": "system", "content": "Be brief."}, user("Hello there, who are you?")]),
        Case("image", [user(image_part(shown), "What is this?")], speaker="Chelsie"),
        Case("audio", [user(audio_part(heard), "What do you hear?")]),
        Case("image+audio", [user(image_part(other), audio_part(second), "Do they fit?")]),
        Case("video", [user(video_part(video(4)), "What happens?")], speaker="aiden"),
        Case(
            "several images",
            [user(image_part(shown), image_part(other), "and", image_part(third), "Which is the odd one?")],
        ),
        Case(
            "three turns",
            [
                user(image_part(third), "Look at this."),
                assistant,
                user(audio_part(heard), "Now listen."),
                assistant,
                user("What do you make of it?"),
            ],
        ),
        Case(
            "video with its sound",
            [user(video_part(video(5, with_sound=True)), "What is said?")],
            use_audio_in_video=True,
        ),
    ]


def differences(expected: OracleAnswer, result: Mapping[str, Any]) -> list[str]:
    """What of a pipeline's merged result is not the oracle's; empty where all is."""
    text, speech = result["decode"], result["code2wav"]
    found = []
    if list(text["token_ids"]) != expected.token_ids:
        found.append("tokens")
    if speech["codes"].tolist() != expected.codes:
        found.append("codes")
    wave = speech["audio_data"]
    if wave.shape != expected.waveform.shape or not np.allclose(wave, expected.waveform, rtol=0, atol=1e-5):
        found.append("waveform")
    return found
