"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: turn recordings into text or subtitles."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from sglang_omni.client import RequestError, TranscriptionResult, TranscriptionSegment
from sglang_omni.client.languages import language_name
from sglang_omni.serve.api.forms import read_form
from sglang_omni.serve.api.protocol.transcriptions import TranscriptionForm
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import AppState, request_id_of
from sglang_omni.serve.api.streaming import until_disconnect
from sglang_omni.serve.api.validation import validation_error

_GRANULARITIES = "timestamp_granularities[]"


def transcription_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/audio/transcriptions", response_model=None)
    async def transcriptions(request: Request) -> Response:
        """Write down what was said."""
        return await _transcribe(server, request, "transcription")

    @router.post("/v1/audio/translations", response_model=None)
    async def translations(request: Request) -> Response:
        """Write down in English what was said."""
        return await _transcribe(server, request, "translation")

    return router


async def _transcribe(server: AppState, request: Request, task: str) -> Response:
    form = await read_form(request)
    try:
        fields = _fields(form)
        audio = await _file(form)
    finally:
        await form.close()
    server.check_model(fields.model)
    server.check_task(task)
    server.check_params(task, {"language": fields.language}, None)
    if fields.timestamp_granularities and fields.response_format != "verbose_json":
        raise RequestError(
            f"{_GRANULARITIES}: only with response_format 'verbose_json'",
            param=_GRANULARITIES,
            code="unsupported_parameter",
        )
    request_id = request_id_of(request, fields.request_id)
    result = await until_disconnect(
        request.receive,
        server.client.transcribe(
            audio,
            session_id=session_key(request),
            owner=owner_of(request),
            model=fields.model,
            language=fields.language,
            translate=task == "translation",
            request_id=request_id,
            timeout=server.timeout(fields.timeout),
            timings=fields.timings,
        ),
    )
    return _response(fields.response_format, result, task, fields.timings)


def _fields(form: FormData) -> TranscriptionForm:
    for name in form:
        if name != _GRANULARITIES and len(form.getlist(name)) > 1:
            raise RequestError(f"{name}: given more than once", param=name, code="invalid_value")
    values: dict[str, Any] = {
        name: value for name, value in form.items() if name not in ("file", _GRANULARITIES)
    }
    if _GRANULARITIES in form:
        values["timestamp_granularities"] = form.getlist(_GRANULARITIES)
    for name, value in values.items():
        if isinstance(value, UploadFile):
            raise RequestError(f"{name}: must be a text field, not a file", param=name, code="invalid_type")
    try:
        return TranscriptionForm.model_validate(values)
    except ValidationError as exc:
        raise validation_error(exc.errors(include_url=False), TranscriptionForm) from exc


async def _file(form: FormData) -> bytes:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError("file: the recording is missing", param="file", code="missing_required_parameter")
    audio = await file.read()
    if not audio:
        raise RequestError("file: the recording is empty", param="file", code="invalid_audio")
    return audio


def _response(kind: str, result: TranscriptionResult, task: str, timings: bool) -> Response:
    if kind == "text":
        return PlainTextResponse(result.text + "\n")
    if kind == "srt":
        return PlainTextResponse(_srt(_segments(result)))
    if kind == "vtt":
        return PlainTextResponse(_vtt(_segments(result)), media_type="text/vtt")
    fields: dict[str, Any] = {"text": result.text}
    if kind == "verbose_json":
        verb, language = "transcribe", result.language
        if task == "translation":
            verb, language = "translate", "en"
        fields |= {
            "task": verb,
            "language": None if language is None else language_name(language),
            "duration": result.duration,
            "segments": [
                {"id": i, "start": s.start, "end": s.end, "text": s.text}
                for i, s in enumerate(result.segments)
            ],
        }
    if task == "transcription" and result.duration is not None:
        fields["usage"] = {"type": "duration", "seconds": result.duration}
    if timings:
        fields["timings"] = result.timings
    return JSONResponse(fields)


def _segments(result: TranscriptionResult) -> list[TranscriptionSegment]:
    if result.segments or not result.text:
        return result.segments
    return [TranscriptionSegment(0.0, result.duration or 0.0, result.text)]


def _srt(segments: list[TranscriptionSegment]) -> str:
    return "".join(
        f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{s.text.strip()}\n\n"
        for i, s in enumerate(segments, 1)
    )


def _vtt(segments: list[TranscriptionSegment]) -> str:
    cues = (f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{s.text.strip()}\n\n" for s in segments)
    return "WEBVTT\n\n" + "".join(cues)


def _clock(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
