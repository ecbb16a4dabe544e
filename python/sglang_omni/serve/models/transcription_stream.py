"""What clients send to ``/v1/audio/transcriptions/stream`` beside sound."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sglang_omni.serve.models.fields import ApiModel, Name, Timeout


class TranscriptionStreamConfig(ApiModel):
    """What comes, and how it is transcribed. The first message, if it is sent at all."""

    type: Literal["session.config"] = "session.config"
    model: Name | None = None
    """A served name; the first one if left out."""
    sample_rate: Annotated[int, Field(ge=8000, le=192_000)] = 16_000
    """Of the sound, in Hz."""
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    """What is spoken: a code or a name. Found out if left out."""
    prompt: str | None = None
    """Words to expect, or what was said before."""
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    """0 is the likeliest text; above 0, the text is drawn."""
    segments: bool = False
    """True if events have the segments too, as ``verbose_json``."""
    timeout: Timeout | None = None
    """Seconds until the stream is ended with an error."""


class SoundDone(ApiModel):
    """The end of the sound."""

    type: Literal["input.done"]


Message = TranscriptionStreamConfig | SoundDone
MESSAGES: dict[str, type[Message]] = {"session.config": TranscriptionStreamConfig, "input.done": SoundDone}
