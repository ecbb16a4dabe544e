"""Conversations of every kind, and what a served answer to one must have in common with the oracle's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from qwen3_omni_oracle import Oracle, OracleAnswer
from sample_media import audio_part, image_part, picture, sound, text_part, user, video, video_part

from sglang_omni import testing

# The reference cuts speech into pieces of 300 frames, which lose what the decoder cuts off each.
REFERENCE = {"code2wav": {"chunking": "reference"}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Case:
    """One conversation. Limits are small: what differs, differs early.

    Attributes:
        tools: Functions that are offered, which no random model calls.
        stop: A text that ends the answer; empty for none.
    """

    name: str
    messages: list[dict[str, Any]]
    use_audio_in_video: bool = False
    max_tokens: int = 16
    max_frames: int = 12
    speaker: str = "Ethan"
    tools: tuple[dict[str, Any], ...] = ()
    stop: str = ""

    def expected(self, oracle: Oracle) -> OracleAnswer:
        return oracle.answer(
            self.messages,
            max_tokens=self.max_tokens,
            max_frames=self.max_frames,
            speaker=self.speaker,
            use_audio_in_video=self.use_audio_in_video,
            tools=self.tools,
            stop=[self.stop] if self.stop else [],
        )

    def stopped_by(self, oracle: Oracle) -> Case:
        """The case, with a stop text of two tokens out of the middle of the oracle's own answer."""
        ids, decode = self.expected(oracle).token_ids, oracle.processor.tokenizer.decode
        for middle in range(len(ids) // 2, len(ids) - 1):
            stop: str = decode(ids[middle : middle + 2], skip_special_tokens=True)
            if len(stop) > 1 and "\ufffd" not in stop and stop not in decode(ids[: middle + 1]):
                return replace(self, name=f"{self.name}, stopped", stop=stop)
        raise RuntimeError(f"{oracle.path}: no text in the answer to {self.name!r} can stop it")

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
        params: dict[str, Any] = {
            "temperature": 0.0,
            "talker_temperature": 0.0,
            "talker_max_new_tokens": self.max_frames + 1,
            "stage_params": REFERENCE,
        }
        if self.tools:
            params["tools"] = list(self.tools)
        if self.stop:
            params["stop"] = [self.stop]
        return params

    @property
    def spoken(self) -> testing.Case:
        """The case as a request to the pipeline, for an answer in text and speech."""
        params = {**self.params, "max_new_tokens": self.max_tokens, "voice": self.speaker}
        if self.use_audio_in_video:
            params["use_audio_in_video"] = True
        metadata = {"task": "chat", "output_modalities": ["text", "audio"]}
        return testing.Case({"messages": self.messages}, params, metadata, self.name)

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
    """Text, image, audio, image and audio, video, several images, three turns, tools."""
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
        Case("text with tools", [user("What is the weather in Paris?")], tools=(_TOOL,)),
    ]


def differences(expected: OracleAnswer, result: Any) -> str:
    """In what a pipeline's merged result is not the oracle's; empty if it is in all."""
    right = testing.Answer(expected.token_ids, expected.codes, expected.waveform)
    return testing.difference(testing.read_answer(result), right)
