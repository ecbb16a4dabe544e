"""Transcripts over HTTP: the form that asks for one, and what the server answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from sglang_omni.client.languages import language_code
from sglang_omni.client.types import GenerateChunk, GenerateRequest, TranscriptionSegment, TranscriptionWord

TRANSCRIPT_PATHS = {
    "transcription": "/v1/audio/transcriptions",
    "translation": "/v1/audio/translations",
}
_GRANULARITIES = "timestamp_granularities[]"


def transcript_form(request: GenerateRequest, request_id: str) -> tuple[str, dict[str, Any]]:
    """The path, and the content of the request as httpx takes it."""
    form: dict[str, Any] = {"response_format": "verbose_json", "request_id": request_id}
    if request.model:
        form["model"] = request.model
    if request.timings:
        form["timings"] = "true"
    if request.stream:
        form["stream"] = "true"
    params = dict(request.extra_params)
    if params.pop("word_timestamps", False):
        form[_GRANULARITIES] = ["segment", "word"]
    form.update({name: str(value) for name, value in params.items()})
    files = {"file": ("audio", request.audio or b"", "application/octet-stream")}
    return TRANSCRIPT_PATHS[request.task], {"data": form, "files": files}


def transcript_chunk(request_id: str, fields: Mapping[str, Any], worker: str | None) -> GenerateChunk:
    """The last chunk, from a whole transcript or a stream's last event."""
    return GenerateChunk(
        request_id,
        text=fields["text"],
        finish_reason="stop",
        language=language_code(fields["language"]) if fields.get("language") else None,
        duration=fields.get("duration"),
        segments=_segments(fields),
        timings=fields.get("timings"),
        worker=worker,
        result=fields,
    )


def transcript_delta(request_id: str, event: Mapping[str, Any]) -> GenerateChunk:
    """A chunk, from an event within a stream."""
    return GenerateChunk(request_id, text=event["delta"], segments=_segments(event))


def _segments(fields: Mapping[str, Any]) -> list[TranscriptionSegment]:
    """The segments, each with those of the words, listed apart, that begin in it."""
    segments = [TranscriptionSegment.from_dict(segment) for segment in fields.get("segments") or ()]
    words = [TranscriptionWord(w["word"], w["start"], w["end"]) for w in fields.get("words") or ()]
    starts = [segment.start for segment in segments]
    for word in words:
        # Words before the first segment are its own.
        segments[max(0, bisect_right(starts, word.start) - 1)].words.append(word)
    return segments
