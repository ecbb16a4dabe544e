"""``/v1/audio/speech``: speaks a text, as a whole file or streamed."""

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
from sglang_omni.serve.api.listening import listening
from sglang_omni.serve.api.protocol.speech import SpeechRequest
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import AppState, request_id_of
from sglang_omni.serve.api.streaming import EventStream, StreamedResponse, until_disconnect


def speech_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/audio/speech", response_model=None)
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Speak a text."""
        server.check_model(body.model)
        server.check_task("speech")
        server.check_voice(body.voice, "voice")
        server.check_params("speech", _given(body), body.stage_params)
        check_encodable(body.audio_format, "response_format")
        request_id = request_id_of(request, body.request_id)
        generate = _request(server, body, request)
        if body.stream or body.stream_format is not None:
            if body.timings:
                raise RequestError(
                    "timings: sent in a header, before a stream has any; leave stream and stream_format out",
                    param="timings",
                    code="unsupported_parameter",
                )
            return await until_disconnect(request.receive, _streamed(server, body, generate, request_id))
        result = await until_disconnect(
            request.receive,
            server.client.speech(
                generate,
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


async def _streamed(
    server: AppState, body: SpeechRequest, generate: GenerateRequest, request_id: str
) -> Response:
    """A response that begins with the first bytes of the file: only then is the sample rate known."""
    started = time.monotonic()
    generate.stream = True
    if body.speed != 1.0:
        generate.extra_params["speed"] = body.speed
    speech = _Speech(server, generate, body.audio_format, request_id)
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
    """A text's speech, encoded while it is made. ``usage`` is set after the last piece."""

    def __init__(
        self, server: AppState, generate: GenerateRequest, audio_format: str, request_id: str
    ) -> None:
        self.encoder = AudioFileEncoder(audio_format)
        self.usage: UsageInfo | None = None
        self._chunks = server.client.generate(generate, request_id=request_id)
        self._metrics = server.metrics

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        encoder, deltas = self.encoder, Deltas()
        with listening(self._metrics) as playback:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self.usage = chunk.usage or self.usage
                    samples = deltas.new_audio(chunk)
                    if samples is None:
                        continue
                    playback.feed(time.monotonic(), len(samples) / deltas.sample_rate)
                    if piece := await encoder.off_loop(encoder.encode, samples, deltas.sample_rate):
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


def _request(server: AppState, body: SpeechRequest, request: Request) -> GenerateRequest:
    return GenerateRequest(
        model=body.model,
        session_id=session_key(request, body),
        owner=owner_of(request),
        prompt=body.input,
        stage_params=body.stage_params,
        extra_params={name: value for name, value in _given(body).items() if name != "speed"},
        stream=False,
        output_modalities=["audio"],
        metadata={"task": "speech"},
        timeout=server.timeout(body.timeout),
        timings=body.timings,
    )


def _given(body: SpeechRequest) -> dict[str, Any]:
    """The parameters of the voice that a request gives."""
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
