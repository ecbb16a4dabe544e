"""Transcripts as the answers of the API: text, JSON and subtitles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from sglang_omni.generation.fields import TranscriptionSegment
from sglang_omni.generation.results import TranscriptionResult
from sglang_omni.generation.subtitles import srt, vtt
from sglang_omni.preprocessing.languages import language_name
from sglang_omni.serve.models.transcriptions import TranscriptionForm


def transcript_response(fields: TranscriptionForm, result: TranscriptionResult, task: str) -> Response:
    """The answer in the format that the request names.

    Args:
        result: The whole transcript.
        task: "transcription" or "translation".
    """
    match fields.response_format:
        case "text":
            return PlainTextResponse(result.text + "\n")
        case "srt":
            return PlainTextResponse(srt(result))
        case "vtt":
            return PlainTextResponse(vtt(result), media_type="text/vtt")
    body = whole_fields(fields, result, task)
    if fields.response_format == "verbose_json":
        body |= segment_fields(fields, result.segments, 0)
    return JSONResponse(body)


def whole_fields(fields: TranscriptionForm, result: TranscriptionResult, task: str) -> dict[str, Any]:
    """The fields of a transcript as JSON, besides its segments and words."""
    body: dict[str, Any] = {"text": result.text}
    if fields.response_format == "verbose_json":
        verb, language = "transcribe", result.language
        if task == "translation":
            verb, language = "translate", "en"
        body |= {
            "task": verb,
            "language": None if language is None else language_name(language),
            "duration": result.duration,
        }
    if task == "transcription" and result.duration is not None:
        body["usage"] = {"type": "duration", "seconds": result.duration}
    if fields.timings:
        body["timings"] = result.timings
    return body


def segment_fields(
    fields: TranscriptionForm, segments: Sequence[TranscriptionSegment], first: int
) -> dict[str, Any]:
    """The segments, numbered from ``first``, and the words, as far as the request wants them."""
    body: dict[str, Any] = {}
    if fields.wants_segments:
        body["segments"] = [_segment(index, segment) for index, segment in enumerate(segments, first)]
    if fields.wants_words:
        body["words"] = [asdict(word) for segment in segments for word in segment.words]
    return body


def _segment(index: int, segment: TranscriptionSegment) -> dict[str, Any]:
    fields = {name: value for name, value in vars(segment).items() if name != "words" and value is not None}
    return {"id": index, **fields}
