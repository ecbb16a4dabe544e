"""``/v1/audio/speech``: text spoken, as a file: whole, or while it is made."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from sglang_omni.client import ClientError, GenerateRequest, RequestError, UsageInfo
from sglang_omni.client.audio import FORMAT_MIME_TYPES, AudioFileEncoder, Base64Pieces, check_format
from sglang_omni.client.transport import Deltas
from sglang_omni.serve.api.bodies import JsonRoute
from sglang_omni.serve.api.protocol import SpeechRequest
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import Server, request_id_of
from sglang_omni.serve.api.streaming import EventStream, StreamedResponse, answer


def speech_routes(server: Server) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/audio/speech", response_model=None)
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Say a text."""
        server.check_model(body.model)
        body.session_id, body.owner = session_key(request, body), owner_of(request)
        server.check_task("speech")
        server.check_voice(body.voice, "voice")
        server.check_params("speech", _given(body), body.stage_params)
        check_encodable(body.audio_format, "response_format")
        request_id = request_id_of(request, body.request_id)
        if body.stream or body.stream_format is not None:
            if body.timings:
                raise RequestError(
                    "timings: known only when all is said, and told in a header: leave stream and "
                    "stream_format out",
                    param="timings",
                    code="unsupported_parameter",
                )
            return await answer(request, _streamed(server, body, request_id))
        result = await answer(
            request,
            server.client.speech(
                _request(server, body, stream=False),
                request_id=request_id,
                response_format=body.audio_format,
                speed=body.speed,
            ),
        )
        server.metrics.finished(result.usage)
        headers = {"content-disposition": f'attachment; filename="speech.{result.format}"'}
        if result.timings is not None:
            headers["x-sglang-omni-timings"] = json.dumps(result.timings)
        if result.sample_rate is not None:
            headers |= _sample_headers(result.sample_rate)
        return Response(result.audio_bytes, media_type=result.mime_type, headers=headers)

    return router


async def _streamed(server: Server, body: SpeechRequest, request_id: str) -> Response:
    """The response begins with the first of the file: only then is its rate known."""
    started = time.monotonic()
    speech = _Speech(server, body, request_id)
    pieces = speech.pieces()
    try:
        first = await anext(pieces, b"")
    except BaseException:
        await pieces.aclose()
        raise
    if not first:
        raise ClientError(f"request {request_id!r}: the pipeline gave no audio")
    server.metrics.first_output(time.monotonic() - started)
    if body.stream_format == "sse":
        return EventStream(_events(speech, first, pieces), request_id=request_id, done=False)
    return StreamedResponse(
        _raw(first, pieces),
        media_type=FORMAT_MIME_TYPES[body.audio_format],
        headers=_sample_headers(speech.encoder.sample_rate),
        request_id=request_id,
    )


class _Speech:
    """A text's speech, encoded while it is made. ``usage`` is known once all the pieces are."""

    def __init__(self, server: Server, body: SpeechRequest, request_id: str) -> None:
        self.encoder = AudioFileEncoder(body.audio_format)
        self.usage: UsageInfo | None = None
        request = _request(server, body, stream=True)
        if body.speed != 1.0:
            request.extra_params["speed"] = body.speed
        self._chunks = server.client.generate(request, request_id=request_id)
        self._metrics = server.metrics

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        encoder, deltas = self.encoder, Deltas()
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                self.usage = chunk.usage or self.usage
                samples = deltas.new_audio(chunk)
                if samples is not None and (
                    piece := await encoder.off_loop(encoder.encode, samples, deltas.sample_rate)
                ):
                    yield piece
        self._metrics.finished(self.usage)
        if piece := await encoder.off_loop(encoder.finish):
            yield piece


async def _raw(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def _events(
    speech: _Speech, first: bytes, rest: AsyncGenerator[bytes, None]
) -> AsyncGenerator[dict[str, Any], None]:
    encoded = Base64Pieces()

    def delta(audio: str) -> dict[str, Any]:
        return {"type": "speech.audio.delta", "audio": audio, "sample_rate": speech.encoder.sample_rate}

    async with aclosing(_raw(first, rest)) as pieces:
        async for piece in pieces:
            if audio := encoded.add(piece):
                yield delta(audio)
    if audio := encoded.add(b"", last=True):
        yield delta(audio)
    usage = speech.usage or UsageInfo()
    yield {
        "type": "speech.audio.done",
        "usage": {
            "input_tokens": usage.prompt_tokens or 0,
            "output_tokens": usage.completion_tokens or 0,
            "total_tokens": usage.total_tokens or 0,
        },
    }


def _request(server: Server, body: SpeechRequest, *, stream: bool) -> GenerateRequest:
    return GenerateRequest(
        model=body.model,
        session_id=body.session_id,
        owner=body.owner,
        prompt=body.input,
        stage_params=body.stage_params,
        extra_params={name: value for name, value in _given(body).items() if name != "speed"},
        stream=stream,
        output_modalities=["audio"],
        metadata={"task": "speech"},
        timeout=server.timeout(body.timeout),
        timings=body.timings,
    )


def _given(body: SpeechRequest) -> dict[str, Any]:
    """What a request says of how its text is to be spoken."""
    given = {name: getattr(body, name) for name in ("voice", "language", "seed")}
    given["speed"] = body.speed if body.speed != 1.0 else None
    return {name: value for name, value in given.items() if value is not None}


def _sample_headers(rate: int) -> dict[str, str]:
    return {"x-sample-rate": str(rate), "x-channels": "1", "x-bit-depth": "16"}


def check_encodable(response_format: str, param: str) -> None:
    try:
        check_format(response_format)
    except ValueError as exc:
        raise RequestError(f"{param}: {exc}", param=param, code="unsupported_value") from exc
