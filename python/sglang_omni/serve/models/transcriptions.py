"""The form of ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from sglang_omni.serve.models.fields import ApiModel, Name, RequestId, Timeout, at_most, unsupported


def _no_additions(names: list[str]) -> list[str]:
    for name in names:
        raise unsupported(f"{name[:64]!r} is not supported here; leave it out")
    return names


def _automatic(strategy: Any) -> Any:
    if strategy != "auto":
        raise unsupported(
            'not supported here; the only value is "auto": long recordings are always cut at silences'
        )
    return strategy


class TranscriptionForm(ApiModel):
    """The fields of a transcription's multipart form besides ``file``. Every value is text."""

    model_config = ConfigDict(strict=False)

    model: Name | None = None
    """A served name; the first one if left out."""
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    """What is spoken: a code or a name. Found out if left out."""
    prompt: str | None = None
    """Words to expect, or what was said before; it guides every part of a long recording."""
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    """``verbose_json`` has the segments too; ``srt`` and ``vtt`` are subtitles."""
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    """0 is the likeliest text, always the same, though Whisper raises it by itself where it doubts that text;
    above 0, the text is drawn."""
    stream: bool = False
    """True if the text comes as server-sent events while the recording is heard."""
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], at_most(4)] | None = None
    """Which times ``verbose_json`` has; written ``timestamp_granularities[]``, once for each."""
    chunking_strategy: Annotated[Any, AfterValidator(_automatic)] = "auto"
    """Only ``auto``: long recordings are cut at silences."""
    include: Annotated[list[str], at_most(4), AfterValidator(_no_additions)] | None = None
    """Refused by name; written ``include[]``."""
    timeout: Timeout | None = None
    """Seconds until the request is aborted and answered with a 504."""
    timings: bool = False
    """True if the answer has the seconds of work and of waiting in each stage."""
    request_id: RequestId | None = None
    """The request's id, for ``/abort_request``, traces and the log; a new one if left out."""

    @property
    def wants_words(self) -> bool:
        return "word" in (self.timestamp_granularities or ())

    @property
    def wants_segments(self) -> bool:
        """By default, and unless only words are asked for."""
        return self.timestamp_granularities is None or "segment" in self.timestamp_granularities
