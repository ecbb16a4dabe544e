"""Transcripts over HTTP: the form that asks for one, and what the server answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from sglang_omni.client.http.bodies import common_fields
from sglang_omni.client.http.call import HttpCall
from sglang_omni.client.media import media_kind
from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import TranscriptionSegment, TranscriptionWord
from sglang_omni.preprocessing.languages import language_code

TRANSCRIPT_PATHS = {
    "transcription": "/v1/audio/transcriptions",
    "translation": "/v1/audio/translations",
}
_GRANULARITIES = "timestamp_granularities[]"


def transcript_form(call: HttpCall) -> dict[str, Any]:
    """The form's fields besides the file."""
    request = call.request
    form: dict[str, Any] = {"response_format": "verbose_json"} | common_fields(call)
    if request.timings:
        form["timings"] = "true"
    if request.timeout is not None:
        form["timeout"] = str(request.timeout)
    if request.stream:
        form["stream"] = "true"
    params = dict(request.extra_params)
    if params.pop("word_timestamps", False):
        form[_GRANULARITIES] = ["segment", "word"]
    form.update({name: str(value) for name, value in params.items()})
    return form


def recording_file(audio: bytes) -> tuple[str, bytes, str]:
    """The form's file: its name, by which OpenAI's servers know the format, its content and its type."""
    kind = media_kind(audio)
    return f"audio.{kind.ending}" if kind else "audio", audio, "application/octet-stream"


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
