"""``/v1/chat/completions``: a conversation in, text and speech out, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.client import CompletionStreamChunk, GenerateRequest, RequestError, SamplingParams
from sglang_omni.client.audio import DEFAULT_SAMPLE_RATE
from sglang_omni.serve.api.bodies import JsonRoute
from sglang_omni.serve.api.fields import SamplingFields
from sglang_omni.serve.api.protocol import (
    AudioUrlPart,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    ContentPart,
    ImageUrl,
    ImageUrlPart,
    MediaUrl,
    VideoUrlPart,
)
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.speech import check_encodable
from sglang_omni.serve.api.state import Server, request_id_of
from sglang_omni.serve.api.streaming import EventStream, answer

_PART_MODALITY = {
    "input_audio": "audio",
    "audio_url": "audio",
    "image_url": "image",
    "video_url": "video",
}
_TALKER = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")


class _Reply(NamedTuple):
    """What every part of one answer repeats."""

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


def chat_routes(server: Server) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = server.check_model(body.model)
        generate = to_generate_request(server, body)
        generate.session_id, generate.owner = session_key(request, body), owner_of(request)
        audio_format = _audio_format(body)
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
        fields = await answer(request, _completion(server, generate, reply, audio_format))
        return JSONResponse(fields)

    return router


async def _completion(
    server: Server, request: GenerateRequest, reply: _Reply, audio_format: str
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
    server: Server, request: GenerateRequest, reply: _Reply, audio_format: str
) -> AsyncGenerator[dict[str, Any], None]:
    started = time.monotonic()
    role: dict[str, Any] = {"role": "assistant"}
    last: CompletionStreamChunk | None = None
    chunks = server.client.completion_stream(request, request_id=reply.request_id, audio_format=audio_format)
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


def _audio_format(body: ChatCompletionRequest) -> str:
    chosen = body.audio.format if body.audio else None
    if chosen is None:
        return "pcm16" if body.stream else "wav"
    check_encodable(chosen, "audio.format")
    return chosen


def to_generate_request(server: Server, body: ChatCompletionRequest) -> GenerateRequest:
    """The client's request for an API request, after what this model can do has been checked."""
    server.check_task("chat")
    check_stream_options(body)
    for modality in body.modalities or ():
        server.check_output(modality, "modalities")
    extra: dict[str, Any] = {}
    if body.audio is not None:
        if "audio" not in (body.modalities or ()):
            raise RequestError(
                "audio: needs 'audio' among the modalities", param="audio", code="unsupported_parameter"
            )
        server.check_voice(body.audio.voice, "audio.voice")
        if body.audio.voice is not None:
            extra["voice"] = body.audio.voice
    for name in _TALKER:
        value = getattr(body, f"talker_{name}")
        if value is not None:
            extra[f"talker_{name}"] = value
    if body.use_audio_in_video:
        extra["use_audio_in_video"] = True
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise RequestError(
            "max_completion_tokens and max_tokens differ; give one",
            param="max_completion_tokens",
            code="invalid_value",
        )
    _check_extra(server, body, extra)
    return GenerateRequest(
        model=body.model,
        messages=_messages(server, body),
        sampling=to_sampling(body),
        stage_params=body.stage_params,
        extra_params=extra,
        stream=body.stream,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        output_modalities=list(body.modalities) if body.modalities else None,
        metadata={"task": "chat"},
        timeout=server.timeout(body.timeout),
        timings=body.timings,
    )


def _check_extra(server: Server, body: ChatCompletionRequest, extra: dict[str, Any]) -> None:
    try:
        server.check_params("chat", extra, body.stage_params, spoken="audio" in (body.modalities or ()))
    except RequestError as exc:
        if exc.param != "voice":
            raise
        raise RequestError(f"audio.{exc.message}", param="audio.voice", code=exc.code) from exc


def check_stream_options(body: ChatCompletionRequest | CompletionRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options: only allowed when stream is true",
            param="stream_options",
            code="unsupported_parameter",
        )


def to_sampling(fields: SamplingFields) -> SamplingParams:
    stop = fields.stop
    return SamplingParams(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=fields.seed,
        stop=[stop] if isinstance(stop, str) else list(stop or ()),
        stop_token_ids=list(fields.stop_token_ids or ()),
        ignore_eos=fields.ignore_eos,
    )


def _messages(server: Server, body: ChatCompletionRequest) -> list[dict[str, Any]]:
    for index, message in enumerate(body.messages):
        _check_message(server, message, f"messages[{index}]")
    messages = [_turn(message) for message in body.messages]
    media: list[dict[str, Any]] = []
    for name, kind in (("images", "image"), ("videos", "video"), ("audios", "audio")):
        for index, url in enumerate(getattr(body, name) or ()):
            param = f"{name}[{index}]"
            server.check_input(kind, param)
            media.append(_media_part(kind, url).model_dump(exclude_none=True) | {"param": param})
    if media:
        _join_last_user_turn(messages, media)
    return messages


def _turn(message: ChatMessage) -> dict[str, Any]:
    """As pipelines read it: of an earlier answer's speech the transcript, and a refusal as what it says."""
    turn = message.model_dump(exclude_none=True, exclude={"audio", "refusal"})
    if message.content is None and message.audio is not None:
        turn["content"] = message.audio.transcript
    elif message.content is None and message.refusal is not None:
        turn["content"] = message.refusal
    return turn


def _check_message(server: Server, message: ChatMessage, where: str) -> None:
    if message.content is None and message.role != "assistant":
        raise RequestError(
            f"{where}.content: a {message.role} message needs content",
            param=f"{where}.content",
            code="missing_required_parameter",
        )
    if message.refusal is not None and (message.role != "assistant" or message.content is not None):
        raise RequestError(
            f"{where}.refusal: what an assistant message has instead of content",
            param=f"{where}.refusal",
            code="invalid_value",
        )
    if message.audio is not None and message.role != "assistant":
        raise RequestError(
            f"{where}.audio: only an assistant message has it; send sound as an input_audio part of content",
            param=f"{where}.audio",
            code="unsupported_parameter",
        )
    if message.audio is not None and message.content is None and message.audio.transcript is None:
        raise RequestError(
            f"{where}.audio: earlier answers are not kept here, so its id says nothing; send the text as "
            "content, or the transcript with the id",
            param=f"{where}.audio",
            code="unsupported_value",
        )
    if message.role == "tool":
        raise RequestError(
            f"{where}.role: tools are not supported here, so there is no tool message",
            param=f"{where}.role",
            code="unsupported_value",
        )
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            modality = _PART_MODALITY.get(part.type)
            if modality is not None:
                server.check_input(modality, f"{where}.content[{index}]")


def _media_part(kind: str, url: str) -> ContentPart:
    if kind == "image":
        return ImageUrlPart(type="image_url", image_url=ImageUrl(url=url))
    if kind == "video":
        return VideoUrlPart(type="video_url", video_url=MediaUrl(url=url))
    return AudioUrlPart(type="audio_url", audio_url=MediaUrl(url=url))


def _join_last_user_turn(messages: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Media come before the text they are about. The turn's own keep the names of where they were."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        messages.append({"role": "user", "content": parts})
        return
    turn = messages[users[-1]]
    content = turn["content"]
    if isinstance(content, str):
        turn["content"] = [*parts, {"type": "text", "text": content}]
        return
    for index, part in enumerate(content):
        kind = part["type"]
        if kind in _PART_MODALITY:
            source = "data" if kind == "input_audio" else "url"
            part["param"] = f"messages[{users[-1]}].content[{index}].{kind}.{source}"
    turn["content"] = parts + content
