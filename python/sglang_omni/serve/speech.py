"""``/v1/audio/speech``: text spoken, as a file or as raw samples while they are made."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from sglang_omni.client import ClientError, GenerateChunk, GenerateRequest, RequestError
from sglang_omni.client.audio import DEFAULT_SAMPLE_RATE, Samples, check_format, encode_pcm
from sglang_omni.client.transport import Deltas
from sglang_omni.serve.protocol import SpeechRequest
from sglang_omni.serve.state import Server, request_id_of
from sglang_omni.serve.streaming import EventStream, StreamedResponse, answer


def speech_routes(server: Server) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/audio/speech", response_model=None)
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Say a text."""
        server.check_model(body.model)
        server.check_task("speech")
        server.check_voice(body.voice, "voice")
        server.check_params("speech", _given(body), body.stage_params)
        request_id = request_id_of(request, body.request_id)
        streamed = body.stream or body.stream_format is not None
        if streamed:
            if body.timings:
                raise RequestError(
                    "timings: known only when all is said, and told in a header: leave stream and "
                    "stream_format out",
                    param="timings",
                    code="unsupported_parameter",
                )
            if body.response_format not in (None, "pcm"):
                raise RequestError(
                    f"response_format: streamed speech is raw 'pcm', not {body.response_format!r}",
                    param="response_format",
                    code="unsupported_value",
                )
            return await answer(request, _streamed(server, body, request_id))
        response_format = body.response_format or "wav"
        check_encodable(response_format, "response_format")
        result = await answer(
            request,
            server.client.speech(
                _request(body, stream=False),
                request_id=request_id,
                response_format=response_format,
                speed=body.speed,
            ),
        )
        headers = {
            "x-request-id": request_id,
            "content-disposition": f'attachment; filename="speech.{result.format}"',
        }
        if result.timings is not None:
            headers["x-sglang-omni-timings"] = json.dumps(result.timings)
        if result.sample_rate is not None:
            headers |= _sample_headers(result.sample_rate)
        return Response(result.audio_bytes, media_type=result.mime_type, headers=headers)

    return router


async def _streamed(server: Server, body: SpeechRequest, request_id: str) -> Response:
    """The response begins with the first samples: only then is their rate known."""
    started = time.monotonic()
    pieces = _pieces(server, body, request_id)
    try:
        first = await anext(pieces, None)
    except BaseException:
        await pieces.aclose()
        raise
    if first is None:
        raise ClientError(f"request {request_id!r}: the pipeline gave no audio")
    server.metrics.first_output(time.monotonic() - started)
    rate, samples = first
    if body.stream_format == "sse":
        return EventStream(_events(samples, rate, pieces), request_id=request_id, done=False)
    return StreamedResponse(
        _raw(samples, pieces),
        media_type="audio/pcm",
        headers=_sample_headers(rate),
        request_id=request_id,
    )


async def _pieces(
    server: Server, body: SpeechRequest, request_id: str
) -> AsyncGenerator[tuple[int, Samples], None]:
    deltas = Deltas()
    rate = DEFAULT_SAMPLE_RATE
    request = _request(body, stream=True)
    if body.speed != 1.0:
        request.extra_params["speed"] = body.speed
    chunks: AsyncGenerator[GenerateChunk, None] = server.client.generate(request, request_id=request_id)
    async with aclosing(chunks):
        async for chunk in chunks:
            rate = chunk.sample_rate or rate
            samples = deltas.new_audio(chunk)
            if samples is not None:
                yield rate, samples


Pieces = AsyncGenerator[tuple[int, Samples], None]


async def _raw(first: Samples, rest: Pieces) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield encode_pcm(first)
        async for _, samples in rest:
            yield encode_pcm(samples)


async def _events(first: Samples, rate: int, rest: Pieces) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(rest):
        yield _event(first, rate)
        async for _, samples in rest:
            yield _event(samples, rate)
        yield {"type": "speech.audio.done"}


def _event(samples: Samples, rate: int) -> dict[str, Any]:
    data = base64.b64encode(encode_pcm(samples)).decode("ascii")
    return {"type": "speech.audio.delta", "audio": data, "sample_rate": rate}


def _request(body: SpeechRequest, *, stream: bool) -> GenerateRequest:
    return GenerateRequest(
        model=body.model,
        prompt=body.input,
        stage_params=body.stage_params,
        extra_params={name: value for name, value in _given(body).items() if name != "speed"},
        stream=stream,
        output_modalities=["audio"],
        metadata={"task": "speech"},
        timeout=body.timeout,
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
