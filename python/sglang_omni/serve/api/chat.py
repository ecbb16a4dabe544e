"""``/v1/chat/completions``: answers a conversation with text and speech, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.client import CompletionStreamChunk, GenerateRequest
from sglang_omni.client.audio import DEFAULT_SAMPLE_RATE
from sglang_omni.serve.api.bodies import JsonRoute
from sglang_omni.serve.api.chat_request import audio_format_of, to_generate_request
from sglang_omni.serve.api.listening import heard
from sglang_omni.serve.api.protocol.chat import ChatCompletionRequest
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import AppState, request_id_of
from sglang_omni.serve.api.streaming import EventStream, until_disconnect


class _Reply(NamedTuple):
    """The fields that every part of one answer repeats."""

    request_id: str
    model: str
    created: int
    modalities: tuple[str, ...]
    include_usage: bool
    timings: bool
    return_token_ids: bool

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": f"chatcmpl-{self.request_id}",
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if self.include_usage:
            fields["usage"] = None
        return fields | more


def chat_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = server.check_model(body.model)
        generate = to_generate_request(server, body)
        generate.session_id, generate.owner = session_key(request, body), owner_of(request)
        audio_format = audio_format_of(body)
        reply = _Reply(
            request_id=request_id_of(request, body.request_id),
            model=model,
            created=int(time.time()),
            modalities=tuple(body.modalities or ("text",)),
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            timings=body.timings,
            return_token_ids=body.return_token_ids,
        )
        if body.stream:
            events = _events(server, generate, reply, audio_format)
            return EventStream(events, request_id=reply.request_id)
        fields = await until_disconnect(request.receive, _completion(server, generate, reply, audio_format))
        return JSONResponse(fields)

    return router


async def _completion(
    server: AppState, request: GenerateRequest, reply: _Reply, audio_format: str
) -> dict[str, Any]:
    result = await server.client.completion(request, request_id=reply.request_id, audio_format=audio_format)
    server.metrics.finished(result.usage)
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if "text" in reply.modalities or result.audio is None:
        message["content"] = result.text
    if "audio" in reply.modalities and result.audio is not None:
        message["audio"] = {
            "id": result.audio.id,
            "data": result.audio.data,
            "transcript": result.audio.transcript or "",
            "expires_at": reply.created,
        }
    fields: dict[str, Any] = {
        "id": f"chatcmpl-{reply.request_id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish_reason}
        ],
        "usage": result.usage.to_dict() if result.usage else None,
    }
    if reply.return_token_ids:
        fields["choices"][0]["token_ids"] = result.token_ids
        if "audio" in message:
            message["audio"]["codes"] = result.audio_codes
    if result.input_transcript is not None:
        fields["heard"] = result.input_transcript
    if reply.timings:
        fields["timings"] = result.timings
    return fields


async def _events(
    server: AppState, request: GenerateRequest, reply: _Reply, audio_format: str
) -> AsyncGenerator[dict[str, Any], None]:
    started = time.monotonic()
    role: dict[str, Any] = {"role": "assistant"}
    last: CompletionStreamChunk | None = None
    chunks = server.client.completion_stream(request, request_id=reply.request_id, audio_format=audio_format)
    if "audio" in reply.modalities:
        chunks = heard(server.metrics, chunks)
    async with aclosing(chunks):
        async for chunk in chunks:
            delta = role | _delta(chunk, reply)
            if delta or chunk.input_transcript or (reply.return_token_ids and chunk.token_ids):
                if role:
                    server.metrics.first_output(time.monotonic() - started)
                role = {}
                more = {"heard": chunk.input_transcript} if chunk.input_transcript else {}
                choice = _choice(delta)
                if reply.return_token_ids:
                    choice["token_ids"] = chunk.token_ids
                yield reply.chunk([choice], **more)
            if chunk.finish_reason is not None:
                last = chunk
    if last is not None:
        server.metrics.finished(last.usage)
    timed = {"timings": last.timings} if reply.timings and last is not None else {}
    yield reply.chunk([_choice({}, last.finish_reason if last else "stop")], **timed)
    if reply.include_usage:
        usage = last.usage.to_dict() if last is not None and last.usage is not None else None
        yield reply.chunk([], usage=usage)


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _delta(chunk: CompletionStreamChunk, reply: _Reply) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    audio: dict[str, Any] = {}
    if chunk.text:
        if "text" in reply.modalities:
            delta["content"] = chunk.text
        if "audio" in reply.modalities:
            audio["transcript"] = chunk.text
    if chunk.audio_b64 is not None and "audio" in reply.modalities:
        audio["data"] = chunk.audio_b64
        audio["sample_rate"] = chunk.sample_rate or DEFAULT_SAMPLE_RATE
    if reply.return_token_ids and chunk.audio_codes and "audio" in reply.modalities:
        audio["codes"] = chunk.audio_codes
    if audio:
        delta["audio"] = {
            "id": f"audio-{reply.request_id}",
            "expires_at": reply.created,
            **audio,
        }
    return delta
