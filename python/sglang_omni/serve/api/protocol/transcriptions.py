"""The form of ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sglang_omni.serve.api.fields import (
    ApiModel,
    Name,
    OnlyEmptyText,
    OnlyFormFalse,
    OnlyFormZero,
    RequestId,
    Timeout,
    at_most,
)


class TranscriptionForm(ApiModel):
    """The fields of a transcription's multipart form besides ``file``. Every value is text."""

    model_config = ConfigDict(strict=False)

    model: Name | None = None
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    prompt: OnlyEmptyText = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    # There is only the most likely transcript, and it is not streamed.
    temperature: OnlyFormZero = None
    stream: OnlyFormFalse = None
    timestamp_granularities: Annotated[list[Literal["segment"]], at_most(4)] | None = None
    timeout: Timeout | None = None
    timings: bool = False
    request_id: RequestId | None = None
