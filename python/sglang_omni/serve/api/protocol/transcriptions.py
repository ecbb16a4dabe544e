"""The form of ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from sglang_omni.serve.api.fields import ApiModel, Name, RequestId, Timeout, at_most, unsupported


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
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    stream: bool = False
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], at_most(4)] | None = None
    chunking_strategy: Annotated[Any, AfterValidator(_automatic)] = "auto"
    include: Annotated[list[str], at_most(4), AfterValidator(_no_additions)] | None = None
    timeout: Timeout | None = None
    timings: bool = False
    request_id: RequestId | None = None

    @property
    def wants_words(self) -> bool:
        return "word" in (self.timestamp_granularities or ())

    @property
    def wants_segments(self) -> bool:
        """By default, and unless only words are asked for."""
        return self.timestamp_granularities is None or "segment" in self.timestamp_granularities
