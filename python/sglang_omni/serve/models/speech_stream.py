"""What clients send to ``/v1/audio/speech/stream``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sglang_omni.serve.models.fields import ApiModel, Name, StageParams, Timeout
from sglang_omni.serve.models.speech import MAX_INPUT_CHARS, SpeechFields


class SpeechStreamConfig(SpeechFields):
    """How the next utterances are spoken."""

    type: Literal["session.config"] = "session.config"
    model: Name | None = None
    """A served name; the first one if left out."""
    stream_audio: bool = True
    """True if a sentence's sound comes in pieces as it is made, False for one piece."""
    audio_frames: Literal["binary", "base64"] = "binary"
    """True if sound comes in binary frames, False for base64 in ``audio.delta`` events."""
    split_granularity: Literal["sentence", "clause"] = "sentence"
    """What is spoken as soon as it is complete: sentences, and of the first one its first
    clause, or every clause."""
    stage_params: StageParams | None = None
    """Parameters for single stages, by stage name."""
    timeout: Timeout | None = None
    """Of each sentence, in seconds."""

    @property
    def audio_format(self) -> str:
        return self.response_format or "pcm"


class SpokenText(ApiModel):
    type: Literal["input.text"]
    text: Annotated[str, Field(max_length=MAX_INPUT_CHARS)]
    """Any piece of the utterance; words may be cut."""


class InputDone(ApiModel):
    """The end of an utterance."""

    type: Literal["input.done"]


class SessionCancel(ApiModel):
    """Silence: what has not been sent yet is dropped."""

    type: Literal["session.cancel"]


class SessionClose(ApiModel):
    """The end of the connection."""

    type: Literal["session.close"]


Message = SpeechStreamConfig | SpokenText | InputDone | SessionCancel | SessionClose
MESSAGES: dict[str, type[Message]] = {
    "session.config": SpeechStreamConfig,
    "input.text": SpokenText,
    "input.done": InputDone,
    "session.cancel": SessionCancel,
    "session.close": SessionClose,
}
