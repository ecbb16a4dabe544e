"""``WS /v1/audio/transcriptions/stream``: sound in while it is spoken, text out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from sglang_omni.generation.answer import AnswerBuilder
from sglang_omni.generation.request import GenerateRequest, SoundStream
from sglang_omni.generation.results import TranscriptionResult
from sglang_omni.generation.samples import Samples, decode_pcm
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.errors import describe
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.websockets import POLICY_VIOLATION
from sglang_omni.serve.models.transcription_stream import MESSAGES, TranscriptionStreamConfig
from sglang_omni.serve.models.transcriptions import TranscriptionForm
from sglang_omni.serve.routes.socket_messages import read_message
from sglang_omni.serve.routes.transcripts import segment_fields, whole_fields
from sglang_omni.serve.state import AppState, request_id_of

# Seconds without a message.
IDLE_S = 60.0
_MAX_MESSAGE_CHARS = 2**20


def transcription_stream_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/audio/transcriptions/stream")
    async def transcription_stream(websocket: WebSocket) -> None:
        """Write down what is said while it is said."""
        server.check_task("transcription")
        if not server.capabilities.hears_streams:
            raise RequestError(
                f"the model {server.served_name!r} transcribes whole recordings; send one to "
                "/v1/audio/transcriptions",
                code="unsupported_task",
            )
        request_id = await request_id_of(websocket, None)
        await websocket.accept()
        try:
            await _transcribe(server, websocket, request_id)
            await websocket.close()
        except WebSocketDisconnect:
            return
        except Exception as exc:  # noqa: BLE001  # it is sent to the client
            _, body = describe(exc, request_id=request_id)
            await _send(websocket, {"type": "error", **body})
            await websocket.close(POLICY_VIOLATION)

    return router


async def _transcribe(server: AppState, websocket: WebSocket, request_id: str) -> None:
    sound = _Sound(websocket)
    config = await sound.begin()
    server.check_model(config.model)
    given = {"language": config.language, "prompt": config.prompt, "temperature": config.temperature}
    request = GenerateRequest(
        sound=SoundStream(config.sample_rate, sound.chunks()),
        extra_params={name: value for name, value in given.items() if value},
        metadata={"task": "transcription"},
        session_id=session_key(websocket),
        owner=owner_of(websocket),
        model=config.model,
        timeout=server.timeout(config.timeout),
    )
    server.check_params("transcription", request.extra_params, None)
    form = TranscriptionForm(response_format="verbose_json" if config.segments else "json")
    answer, count = AnswerBuilder(), 0
    permit = await server.admission.acquire(asyncio.Event().wait)
    assert permit is not None
    try:
        async with aclosing(server.transport.parts(request, request_id)) as parts:
            async for part in parts:
                answer.join(part)
                segments = segment_fields(form, part.segments, count) if config.segments else {}
                count += len(part.segments)
                if part.text or segments.get("segments"):
                    await _send(websocket, {"type": "transcript.text.delta", "delta": part.text, **segments})
    finally:
        server.admission.release(permit)
    whole = whole_fields(form, TranscriptionResult.of(answer.whole()), "transcription")
    await _send(websocket, {"type": "transcript.text.done", **whole})


class _Sound:
    """The client's frames: perhaps a config, then samples, until it says that these are all."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._first: dict[str, Any] | None = None

    async def begin(self) -> TranscriptionStreamConfig:
        """The config; the default one if the first frame is none, which is then kept for ``chunks``."""
        frame = await self._receive()
        if (text := frame.get("text")) is not None:
            message = read_message(text, MESSAGES, _MAX_MESSAGE_CHARS)
            if isinstance(message, TranscriptionStreamConfig):
                return message
        self._first = frame
        return TranscriptionStreamConfig()

    async def chunks(self) -> AsyncGenerator[Samples, None]:
        """The samples of binary frames, little-endian 16-bit, mono. A sample may be cut between two.

        Raises:
            RequestError: The client sent something else, or nothing for too long.
            WebSocketDisconnect: It left.
        """
        left = b""
        while True:
            frame, self._first = self._first or await self._receive(), None
            if (text := frame.get("text")) is not None:
                message = read_message(text, MESSAGES, _MAX_MESSAGE_CHARS)
                if isinstance(message, TranscriptionStreamConfig):
                    raise RequestError(
                        "session.config: only as the first message; open another stream",
                        param="type",
                        code="invalid_value",
                    )
                break
            data = left + frame["bytes"]
            whole = len(data) // 2 * 2
            left = data[whole:]
            if whole:
                yield decode_pcm(data[:whole])
        if left:
            raise RequestError(
                "the sound ends within a sample: send little-endian 16-bit samples", code="invalid_audio"
            )

    async def _receive(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(IDLE_S):
                frame = dict(await self._websocket.receive())
        except TimeoutError:
            raise RequestError(f"no message for {IDLE_S:g} s", code="idle_timeout") from None
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code", 1000))
        return frame


async def _send(websocket: WebSocket, event: dict[str, Any]) -> None:
    await websocket.send_text(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
