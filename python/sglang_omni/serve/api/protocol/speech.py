"""The body of ``/v1/audio/speech``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sglang_omni.serve.api.fields import ExtensionFields, Name, OnlyEmptyText


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


class SpeechRequest(ExtensionFields):
    model: Name | None = None
    input: Annotated[str, Field(min_length=1, max_length=16_384), AfterValidator(_not_blank)]
    voice: Name | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    stream: bool = False
    stream_format: Literal["audio", "sse"] | None = None
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    user: Name | None = None
    instructions: OnlyEmptyText = None

    @property
    def audio_format(self) -> str:
        """The format asked for, or OpenAI's default.

        ``stream`` without ``stream_format``, which OpenAI does not have, gives raw samples.
        """
        if self.response_format is not None:
            return self.response_format
        return "pcm" if self.stream and self.stream_format is None else "mp3"
