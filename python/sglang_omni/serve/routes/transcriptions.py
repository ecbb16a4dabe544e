"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: turn recordings into text or subtitles."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from sglang_omni.generation.answer import AnswerBuilder
from sglang_omni.generation.request import GenerateRequest, transcription_request
from sglang_omni.generation.results import TranscriptionResult
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import EventStream, until_disconnect
from sglang_omni.serve.front.validation import validation_error
from sglang_omni.serve.models.transcriptions import TranscriptionForm
from sglang_omni.serve.routes.documented import EVENTS, media
from sglang_omni.serve.routes.forms import form_schema, read_form
from sglang_omni.serve.routes.transcripts import segment_fields, transcript_response, whole_fields
from sglang_omni.serve.state import AppState, request_id_of

# Fields that may be given several times, as they are written, and what they are called here.
_LISTS = {"timestamp_granularities[]": "timestamp_granularities", "include[]": "include"}
_STREAMED = ("json", "text", "verbose_json")


def transcription_routes(server: AppState) -> APIRouter:
    router = APIRouter()
    options: dict[str, Any] = {
        "response_model": None,
        "openapi_extra": form_schema(
            TranscriptionForm,
            "file",
            "The recording, in a format that FFmpeg reads.",
            {name: spelled for spelled, name in _LISTS.items()},
        ),
        "responses": media("text/plain", "text/vtt", EVENTS),
    }

    @router.post("/v1/audio/transcriptions", **options)
    async def transcriptions(request: Request) -> Response:
        """Write down what was said."""
        return await _transcribe(server, request, "transcription")

    @router.post("/v1/audio/translations", **options)
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
    _check_format(fields)
    generate = transcription_request(
        audio,
        language=fields.language,
        prompt=fields.prompt or None,
        temperature=fields.temperature or None,
        word_timestamps=fields.wants_words,
        translate=task == "translation",
        stream=fields.stream,
        session_id=session_key(request),
        owner=owner_of(request),
        model=fields.model,
        timeout=server.timeout(fields.timeout),
        timings=fields.timings,
    )
    _check_params(server, task, generate)
    request_id = await request_id_of(request, fields.request_id)
    if fields.stream:
        return EventStream(
            _events(server, generate, fields, task, request_id), request_id=request_id, done=False
        )
    whole = await until_disconnect(request.receive, server.transport.whole(generate, request_id))
    return transcript_response(fields, TranscriptionResult.of(whole), task)


def _check_params(server: AppState, task: str, generate: GenerateRequest) -> None:
    try:
        server.check_params(task, generate.extra_params, None)
    except RequestError as exc:
        if exc.param != "word_timestamps":
            raise
        raise RequestError(
            "timestamp_granularities[]: this model does not tell the times of words; leave 'word' out",
            param="timestamp_granularities[]",
            code="unsupported_parameter",
        ) from exc


def _check_format(fields: TranscriptionForm) -> None:
    if fields.timestamp_granularities and fields.response_format != "verbose_json":
        raise RequestError(
            "timestamp_granularities[]: only with response_format 'verbose_json'",
            param="timestamp_granularities[]",
            code="unsupported_parameter",
        )
    if fields.stream and fields.response_format not in _STREAMED:
        raise RequestError(
            f"stream: not with response_format {fields.response_format!r}, only with {', '.join(_STREAMED)}",
            param="stream",
            code="unsupported_parameter",
        )


async def _events(
    server: AppState, generate: GenerateRequest, fields: TranscriptionForm, task: str, request_id: str
) -> AsyncGenerator[dict[str, Any], None]:
    """OpenAI's events. Those of ``verbose_json`` also have the segments and words that are new."""
    started, count = time.monotonic(), 0
    answer = AnswerBuilder()
    verbose = fields.response_format == "verbose_json"
    async with aclosing(server.transport.parts(generate, request_id)) as parts:
        async for part in parts:
            # A segment may be complete only after its text is out.
            if part.text or (verbose and part.segments):
                if answer.last is None:
                    server.metrics.first_output(time.monotonic() - started)
                delta = {"type": "transcript.text.delta", "delta": part.text}
                yield delta | (segment_fields(fields, part.segments, count) if verbose else {})
            answer.join(part)
            count += len(part.segments)
    result = TranscriptionResult.of(answer.whole())
    yield {"type": "transcript.text.done"} | whole_fields(fields, result, task)


def _fields(form: FormData) -> TranscriptionForm:
    for name in form:
        if name not in _LISTS and len(form.getlist(name)) > 1:
            raise RequestError(f"{name}: given more than once", param=name, code="invalid_value")
    values: dict[str, Any] = {}
    for name, value in form.items():
        # The parts of an object, as OpenAI's client writes them.
        whole = "chunking_strategy" if name.startswith("chunking_strategy[") else name
        if name != "file":
            values[_LISTS.get(name, whole)] = form.getlist(name) if name in _LISTS else value
    for name, value in values.items():
        if any(isinstance(each, UploadFile) for each in (value if isinstance(value, list) else [value])):
            raise RequestError(
                f"{name}: a file has this name; the recording's is 'file', and the other fields are texts",
                param=name,
                code="invalid_type",
            )
    try:
        return TranscriptionForm.model_validate(values)
    except ValidationError as exc:
        raise validation_error(exc.errors(include_url=False), TranscriptionForm) from exc


async def _file(form: FormData) -> bytes:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        how = "is missing" if file is None else "must be sent as a file, not as text"
        raise RequestError(f"file: the recording {how}", param="file", code="missing_required_parameter")
    audio = await file.read()
    if not audio:
        raise RequestError("file: the recording is empty", param="file", code="invalid_audio")
    return audio
