"""The client's transport over HTTP: which route of OpenAI's API is asked for what."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from sglang_omni.client.http.bodies import EXTRAS, completion_body, speech_body, standard
from sglang_omni.client.http.call import HttpCall
from sglang_omni.client.http.chunks import completion_chunk, completion_result, delta_chunk
from sglang_omni.client.http.connection import HttpConnection, json_of
from sglang_omni.client.http.events import events_of
from sglang_omni.client.http.transcripts import (
    TRANSCRIPT_PATHS,
    recording_file,
    transcript_chunk,
    transcript_delta,
    transcript_form,
)
from sglang_omni.client.types import ModelInfo, VoiceList
from sglang_omni.generation.answer import Delivered, GenerateChunk
from sglang_omni.generation.errors import ClientError
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.results import CompletionResult, SpeechResult
from sglang_omni.generation.samples import DEFAULT_SAMPLE_RATE, decode_pcm
from sglang_omni.generation.transport import Transport
from sglang_omni.proto import RequestError

_WORKER_HEADER = "x-sglang-omni-worker"
# Of an answer whose body is a file.
_TIMINGS_HEADER = "x-sglang-omni-timings"
_FINISH_HEADER = "x-finish-reason"
# By this owner of its models a server is known to be one of this package's.
_OWNER = "sglang-omni"
# Fields of an event that are new in an answer; the others are of its end.
_NEW = ("text", "input_transcript", "reasoning", "tool_calls", "logprobs", "token_ids")
_OF_THE_END = ("finish_reason", "usage", "timings", "audio_codes")


class HttpTransport(Transport):
    """
    Args:
        base_url, api_key, max_retries: As of ``HttpConnection``.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, max_retries: int = 2) -> None:
        self.connection = HttpConnection(base_url, api_key=api_key, max_retries=max_retries)
        self._is_ours: bool | None = None

    async def close(self) -> None:
        await self.connection.close()

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        # The abort is a request of its own, with its own id.
        call = HttpCall(GenerateRequest(owner=owner))
        body = {"request_id": request_id}
        answer = await self.connection.send("/abort_request", call, idempotent=True, json=body)
        return bool(json_of(answer).get("success"))

    def address(self) -> tuple[str, dict[str, str]]:
        return self.connection.base_url, self.connection.headers

    def health(self) -> dict[str, Any]:
        return self.connection.health()

    async def models(self) -> list[ModelInfo]:
        listed = (await self.connection.get("/v1/models")).get("data") or []
        self._is_ours = any(model.get("owned_by") == _OWNER for model in listed)
        info: dict[str, Any] = {}
        if self._is_ours:
            info = await self.connection.get("/get_model_info")
        return [ModelInfo.from_dict(model, info) for model in listed]

    async def voices(self) -> VoiceList:
        fields = await self.connection.get("/v1/audio/voices")
        return VoiceList(list(fields.get("voices") or ()), fields.get("languages"), fields.get("model"))

    async def parts(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        call = HttpCall.of(request, request_id)
        if request.sound is not None:
            raise RequestError(
                "sound that comes is not sent over HTTP: use WS /v1/audio/transcriptions/stream",
                param="sound",
                code="not_supported",
            )
        if request.task in TRANSCRIPT_PATHS:
            parts = self._transcript(call)
        elif request.task == "speech":
            parts = self._spoken(call)
        elif request.stream:
            parts = self._streamed(call)
        else:
            parts = self._whole(call)
        async with aclosing(parts):
            async for part in parts:
                yield part

    async def completion(
        self, request: GenerateRequest, request_id: str | None, audio_format: str
    ) -> CompletionResult:
        """A whole completion, whose audio the server encodes: the client needs no codec."""
        call = HttpCall.of(replace(request, stream=False), request_id)
        path, body = completion_body(call, audio_format=audio_format)
        answer = await self.connection.send(path, call, json=await self._understood(body))
        return completion_result(call, json_of(answer), answer.headers.get(_WORKER_HEADER))

    async def speech(
        self, request: GenerateRequest, request_id: str | None, response_format: str
    ) -> SpeechResult:
        """A text's speech, which the server encodes."""
        call = HttpCall.of(request, request_id)
        body = await self._understood(speech_body(call, audio_format=response_format))
        answer = await self.connection.send("/v1/audio/speech", call, json=body)
        rate = answer.headers.get("x-sample-rate")
        return SpeechResult(
            audio_bytes=answer.content,
            mime_type=answer.headers.get("content-type", "application/octet-stream"),
            format=response_format,
            sample_rate=int(rate) if rate else None,
            timings=json.loads(answer.headers.get(_TIMINGS_HEADER, "null")),
            worker=answer.headers.get(_WORKER_HEADER),
            finish_reason=answer.headers.get(_FINISH_HEADER, "stop"),
        )

    async def _understood(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body for this server: its models say whose it is, asked for once if the body has extras."""
        if EXTRAS & body.keys():
            if self._is_ours is None:
                await self._ask_whose()
            if not self._is_ours:
                return standard(body)
        return body

    async def _ask_whose(self) -> None:
        try:
            await self.models()
        except RequestError as exc:
            if exc.status != 404:
                raise
            self._is_ours = False

    async def _whole(self, call: HttpCall) -> AsyncGenerator[GenerateChunk, None]:
        path, body = completion_body(call, audio_format="wav")
        answer = await self.connection.send(path, call, json=await self._understood(body))
        yield completion_chunk(call, json_of(answer), answer.headers.get(_WORKER_HEADER))

    async def _streamed(self, call: HttpCall) -> AsyncGenerator[GenerateChunk, None]:
        path, body = completion_body(call, audio_format="pcm16")
        body = await self._understood(body | {"stream_options": {"include_usage": True}})
        # What an answer ends with may come in several events.
        last = GenerateChunk(call.id)
        async with (
            self.connection.open(path, call, json=body) as response,
            aclosing(events_of(response)) as events,
        ):
            last.worker = response.headers.get(_WORKER_HEADER)
            async for event in events:
                part = delta_chunk(call.id, event)
                is_new = part.audio_data is not None or any(getattr(part, name) for name in _NEW)
                for name in _OF_THE_END:
                    if value := getattr(part, name):
                        setattr(last, name, value)
                part.finish_reason = None
                if is_new:
                    yield part
        if last.finish_reason is None:
            raise self._cut_off(call)
        yield last

    async def _spoken(self, call: HttpCall) -> AsyncGenerator[GenerateChunk, None]:
        body = await self._understood(speech_body(call, audio_format="pcm", stream=call.request.stream))
        async with self.connection.open("/v1/audio/speech", call, json=body) as response:
            worker = response.headers.get(_WORKER_HEADER)
            rate = int(response.headers.get("x-sample-rate", DEFAULT_SAMPLE_RATE))
            rest = b""
            async for data in response.aiter_bytes():
                data = rest + data
                even = len(data) & ~1
                data, rest = data[:even], data[even:]
                if data:
                    yield GenerateChunk(
                        call.id, modality="audio", audio_data=decode_pcm(data), sample_rate=rate
                    )
        yield GenerateChunk(call.id, modality="audio", sample_rate=rate, finish_reason="stop", worker=worker)

    async def _transcript(self, call: HttpCall) -> AsyncGenerator[GenerateChunk, None]:
        path = TRANSCRIPT_PATHS[call.request.task]
        content: dict[str, Any] = {
            "data": await self._understood(transcript_form(call)),
            "files": {"file": recording_file(call.request.audio or b"")},
        }
        if not call.request.stream:
            answer = await self.connection.send(path, call, **content)
            yield transcript_chunk(call.id, json_of(answer), answer.headers.get(_WORKER_HEADER))
            return
        delivered = Delivered()
        async with (
            self.connection.open(path, call, **content) as response,
            aclosing(events_of(response)) as events,
        ):
            async for event in events:
                if event["type"] == "transcript.text.done":
                    whole = transcript_chunk(call.id, event, response.headers.get(_WORKER_HEADER))
                    yield delivered.rest_of(whole)
                    return
                if event["type"] == "transcript.text.delta":
                    part = transcript_delta(call.id, event)
                    delivered.add(part)
                    yield part
        raise self._cut_off(call)

    def _cut_off(self, call: HttpCall) -> ClientError:
        return ClientError(f"the stream from {self.connection.base_url} was cut off {call}")
