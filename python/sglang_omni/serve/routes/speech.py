"""``/v1/audio/speech``: speaks a text, as a whole file or streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.generation.audio import FORMAT_MIME_TYPES, Base64Pieces
from sglang_omni.generation.errors import no_audio
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import EventStream, StreamedResponse, until_disconnect
from sglang_omni.serve.models.speech import CreateSpeechRequest
from sglang_omni.serve.routes.documented import EVENTS, media
from sglang_omni.serve.routes.speech_encoding import (
    EncodedSpeech,
    check_encodable,
    check_speech,
    speech_request,
    usage_fields,
    whole_speech,
    with_times,
)
from sglang_omni.serve.state import AppState, request_id_of
from sglang_omni.serve.word_times import WordTimes, check_granularities


def speech_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post(
        "/v1/audio/speech",
        response_model=None,
        response_class=Response,
        responses=media(*FORMAT_MIME_TYPES.values(), EVENTS, "application/json"),
    )
    async def speech(body: CreateSpeechRequest, request: Request) -> Response:
        """Speak a text."""
        server.check_model(body.model)
        voice = check_speech(server, body, body.stage_params, owner_of(request))
        check_encodable(body.audio_format, "response_format")
        streamed = body.stream or body.stream_format is not None
        if streamed and body.timings:
            raise RequestError(
                "timings: sent in a header, before a stream has any; leave stream and stream_format out",
                param="timings",
                code="unsupported_parameter",
            )
        times = check_granularities(server, body.timestamp_granularities)
        if times is not None and streamed and body.stream_format != "sse":
            raise RequestError(
                "timestamp_granularities: a file in pieces has no place for times; set stream_format to "
                "'sse', or leave out stream and stream_format",
                param="timestamp_granularities",
                code="unsupported_parameter",
            )
        request_id = await request_id_of(request, body.request_id)
        generate = speech_request(
            server,
            request,
            body.input,
            body,
            stream=streamed,
            model=body.model,
            session_id=session_key(request, body),
            stage_params=body.stage_params,
            timeout=body.timeout,
            timings=body.timings,
            voice=voice,
        )
        if streamed:
            speech = EncodedSpeech(server, generate, body.audio_format, request_id)
            return await until_disconnect(request.receive, _streamed(body, speech, times, request_id))
        result = await until_disconnect(
            request.receive,
            whole_speech(server, generate, body.audio_format, request_id),
        )
        server.metrics.finished(result.usage)
        headers = {
            "content-disposition": f'attachment; filename="speech.{result.format}"',
            "x-finish-reason": result.finish_reason,
        }
        if result.timings is not None:
            headers["x-sglang-omni-timings"] = json.dumps(result.timings)
        if result.sample_rate is not None:
            headers |= _sample_headers(result.sample_rate)
        if times is not None:
            del headers["content-disposition"]
            return JSONResponse(await with_times(result, times), headers=headers)
        return Response(result.audio_bytes, media_type=result.mime_type, headers=headers)

    return router


async def _streamed(
    body: CreateSpeechRequest, speech: EncodedSpeech, times: WordTimes | None, request_id: str
) -> Response:
    """A response that begins with the first bytes of the file: only then is the sample rate known."""
    pieces = speech.pieces()
    try:
        first = await anext(pieces, b"")
    except BaseException:
        await pieces.aclose()
        raise
    if not first:
        raise no_audio(speech.finish_reason)
    if body.stream_format == "sse":
        return EventStream(_events(speech, times, first, pieces), request_id=request_id, done=False)
    return StreamedResponse(
        _raw(first, pieces),
        media_type=FORMAT_MIME_TYPES[body.audio_format],
        headers=_sample_headers(speech.encoder.sample_rate),
        request_id=request_id,
    )


async def _raw(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def _events(
    speech: EncodedSpeech, times: WordTimes | None, first: bytes, rest: AsyncGenerator[bytes, None]
) -> AsyncGenerator[dict[str, Any], None]:
    encoded = Base64Pieces()

    def delta(audio: str) -> dict[str, Any]:
        event = {"type": "speech.audio.delta", "audio": audio, "sample_rate": speech.encoder.sample_rate}
        return event if times is None else event | {"words": times.add(speech.take_words())}

    async with aclosing(_raw(first, rest)) as pieces:
        async for piece in pieces:
            if audio := encoded.add(piece):
                yield delta(audio)
    if audio := encoded.add(b"", last=True):
        yield delta(audio)
    done: dict[str, Any] = {
        "type": "speech.audio.done",
        "usage": usage_fields(speech.usage),
        "finish_reason": speech.finish_reason,
    }
    if times is not None:
        words = times.add(speech.take_words(), last=True)
        done |= {"granularity": times.granularity, "words": words}
    yield done


def _sample_headers(rate: int) -> dict[str, str]:
    return {"x-sample-rate": str(rate), "x-channels": "1", "x-bit-depth": "16"}
