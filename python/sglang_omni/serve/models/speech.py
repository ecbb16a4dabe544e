"""The bodies of ``/v1/audio/speech`` and ``/v1/audio/speech/batch``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sglang_omni.serve.models.fields import (
    ApiModel,
    Count,
    ExtensionFields,
    Granularities,
    MinP,
    Name,
    Penalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    VoiceName,
    at_most,
)

MAX_INPUT_CHARS = 16_384
MAX_ITEMS = 32

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


# Fields that are parameters of pipelines under the same names.
_PARAMS = (
    *("voice", "language", "seed", "ref_audio", "ref_text", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Input = Annotated[str, Field(min_length=1, max_length=MAX_INPUT_CHARS), AfterValidator(_not_blank)]


class SpeechFields(ApiModel):
    """How a text is spoken."""

    voice: VoiceName | None = None
    """A name of ``/v1/audio/voices``, or OpenAI's ``{"id": name}``; the default voice if left out."""
    response_format: Format | None = None
    """How the sound is encoded."""
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    """Times the voice's own pace."""
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    """A code or a name; the voice's own language if left out."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """With the same seed, the same sound."""
    instructions: Annotated[str, Field(max_length=4096)] | None = None
    """How to speak, in words."""
    ref_audio: str | None = None
    """A recording of the voice to speak with, as base64, data URL or URL."""
    ref_text: Annotated[str, Field(max_length=MAX_INPUT_CHARS)] | None = None
    """What is said in ``ref_audio``."""
    temperature: Temperature | None = None
    """0 takes the likeliest code each time; higher draws more freely. This and the fields below are for
    models that draw the codes of their sound."""
    top_p: TopP | None = None
    """Draw only among the likeliest codes that have this probability together."""
    top_k: TopK | None = None
    """Draw only among this many of the likeliest codes; -1 and 0 are no limit."""
    min_p: MinP | None = None
    """Draw only among codes with at least this share of the likeliest one's probability."""
    repetition_penalty: RepetitionPenalty | None = None
    """Above 1, codes of the sound so far become less likely to come again."""
    presence_penalty: Penalty | None = None
    """Taken from the logits of codes that the sound has already."""
    frequency_penalty: Penalty | None = None
    """Taken from a code's logit for each time that the sound has it."""
    max_new_tokens: Count | None = None
    """The most frames of codes: of the speech, or of each part of a long text, as the model's page says."""
    max_tokens: Count | None = None
    """Another name of ``max_new_tokens``; both may be given if they are equal."""
    timestamp_granularities: Granularities | None = None
    """Which times come with the sound: of ``word`` or ``sentence`` the finer one that the model knows."""

    @property
    def given(self) -> dict[str, Any]:
        """The parameters of the voice that are given and change something, as pipelines name them."""
        given = {name: getattr(self, name) for name in _PARAMS}
        given["max_new_tokens"] = self.max_new_tokens or self.max_tokens
        given["instructions"] = self.instructions or None
        given["speed"] = self.speed if self.speed != 1.0 else None
        return {name: value for name, value in given.items() if value is not None}


class CreateSpeechRequest(SpeechFields, ExtensionFields):
    model: Name | None = None
    """A served name; the first one if left out."""
    input: Input
    """The text to speak."""
    stream: bool = False
    """True if the sound comes while it is made; alone, as raw samples."""
    stream_format: Literal["audio", "sse"] | None = None
    """How a stream comes: the file in pieces, or ``speech.audio.delta`` events."""
    user: Name | None = None
    """Names the session; no effect on the sound."""

    @property
    def audio_format(self) -> str:
        """The format asked for, or OpenAI's default.

        ``stream`` without ``stream_format``, which OpenAI does not have, gives raw samples.
        """
        if self.response_format is not None:
            return self.response_format
        return "pcm" if self.stream and self.stream_format is None else "mp3"


class SpeechItem(SpeechFields):
    """One text of a batch; what it leaves out is as the batch says."""

    input: Input
    """The text to speak."""


class SpeechBatchRequest(SpeechFields, ExtensionFields):
    """Several texts. ``items`` are checked one by one, so that a wrong one is wrong alone."""

    model: Name | None = None
    """A served name; the first one if left out."""
    items: Annotated[list[dict[Name, Any]], at_most(MAX_ITEMS, least=1)]
    """The texts: each has ``input``, and of the fields of the batch those that differ."""
    user: Name | None = None
    """Names the session; no effect on the sound."""
