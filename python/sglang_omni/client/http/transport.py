"""The client's transport over HTTP: which route of OpenAI's API is asked for what."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import numpy as np

from sglang_omni.client.http.bodies import EXTRAS, completion_body, speech_body, standard
from sglang_omni.client.http.call import HttpCall
from sglang_omni.client.http.chunks import completion_chunk, delta_chunk
from sglang_omni.client.http.connection import HttpConnection, json_of
from sglang_omni.client.http.events import events_of
from sglang_omni.client.http.transcripts import (
    TRANSCRIPT_PATHS,
    recording_file,
    transcript_chunk,
    transcript_delta,
    transcript_form,
)
from sglang_omni.client.samples import DEFAULT_SAMPLE_RATE, Samples, decode_pcm
from sglang_omni.client.transport import Transport
from sglang_omni.client.types import (
    ClientError,
    CompletionAudio,
    CompletionResult,
    GenerateChunk,
    GenerateRequest,
    ModelInfo,
    SpeechResult,
    TranscriptionSegment,
    VoiceList,
    join_tool_calls,
)
from sglang_omni.proto import RequestError

_WORKER_HEADER = "x-sglang-omni-worker"
# What is told of an answer whose body is a file.
_TIMINGS_HEADER = "x-sglang-omni-timings"
_FINISH_HEADER = "x-finish-reason"
# By this owner of its models a server is known to be one of this package's.
_OWNER = "sglang-omni"
# Fields of a chunk that are worth telling.
_NEWS = ("text", "input_transcript", "reasoning", "tool_calls", "logprobs")


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
        told: dict[str, Any] = {}
        if self._is_ours:
            told = await self.connection.get("/get_model_info")
        return [ModelInfo.from_dict(model, told) for model in listed]

    async def voices(self) -> VoiceList:
        fields = await self.connection.get("/v1/audio/voices")
        return VoiceList(list(fields.get("voices") or ()), fields.get("languages"), fields.get("model"))

    async def generate(
        self, request: GenerateRequest, request_id: str | None
    ) -> AsyncGenerator[GenerateChunk, None]:
        call = HttpCall.of(request, request_id)
        if request.task in TRANSCRIPT_PATHS:
            chunks = self._transcript(call)
        elif request.task == "speech":
            chunks = self._spoken(call)
        elif request.stream:
            chunks = self._streamed(call)
        else:
            chunks = self._whole(call)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def completion(
        self,
        request: GenerateRequest,
        request_id: str | None,
        audio_format: str,
        on_chunk: Callable[[GenerateChunk], None] | None = None,
    ) -> CompletionResult:
        # The server encodes the audio: the client needs no codec.
        call = HttpCall.of(request, request_id)
        path, body = completion_body(call, audio_format=audio_format)
        body = await self._understood(body | {"stream": False})
        answer = await self.connection.send(path, call, json=body)
        fields, worker = json_of(answer), answer.headers.get(_WORKER_HEADER)
        chunk = completion_chunk(call.id, fields, worker, decode_audio=False)
        spoken = (fields["choices"][0].get("message") or {}).get("audio")
        audio = CompletionAudio(spoken["id"], spoken["data"], spoken.get("transcript")) if spoken else None
        return CompletionResult(
            request_id=call.id,
            text=chunk.text,
            audio=audio,
            finish_reason=chunk.finish_reason or "stop",
            usage=chunk.usage,
            input_transcript=chunk.input_transcript,
            token_ids=chunk.token_ids,
            audio_codes=chunk.audio_codes,
            timings=chunk.timings,
            worker=worker,
            result=fields,
            reasoning=chunk.reasoning,
            tool_calls=chunk.tool_calls,
            logprobs=chunk.logprobs,
        )

    async def speech(
        self, request: GenerateRequest, request_id: str | None, response_format: str
    ) -> SpeechResult:
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
        yield completion_chunk(call.id, json_of(answer), answer.headers.get(_WORKER_HEADER))

    async def _streamed(self, call: HttpCall) -> AsyncGenerator[GenerateChunk, None]:
        path, body = completion_body(call, audio_format="pcm16")
        body = await self._understood(body | {"stream_options": {"include_usage": True}})
        whole = GenerateChunk(call.id, sample_rate=DEFAULT_SAMPLE_RATE)
        audio: list[Samples] = []
        async with (
            self.connection.open(path, call, json=body) as response,
            aclosing(events_of(response)) as events,
        ):
            whole.worker = response.headers.get(_WORKER_HEADER)
            async for event in events:
                chunk = delta_chunk(call.id, event)
                whole.text += chunk.text
                whole.token_ids += chunk.token_ids
                whole.reasoning += chunk.reasoning
                whole.logprobs += chunk.logprobs
                join_tool_calls(whole.tool_calls, chunk.tool_calls)
                whole.audio_codes = chunk.audio_codes or whole.audio_codes
                if chunk.audio_data is not None:
                    audio.append(chunk.audio_data)
                    whole.sample_rate = chunk.sample_rate
                for name in ("finish_reason", "usage", "input_transcript", "timings"):
                    value = getattr(chunk, name)
                    if value is not None:
                        setattr(whole, name, value)
                # Only the whole result has a finish reason.
                chunk.finish_reason = None
                if chunk.audio_data is not None or any(getattr(chunk, name) for name in _NEWS):
                    yield chunk
        if whole.finish_reason is None:
            raise self._cut_off(call)
        if audio:
            whole.audio_data = np.concatenate(audio)
        yield whole

    async def _spoken(self, call: HttpCall) -> AsyncGenerator[GenerateChunk, None]:
        stream = call.request.stream
        body = await self._understood(speech_body(call, audio_format="pcm", stream=stream))
        whole = GenerateChunk(call.id, modality="audio", finish_reason="stop")
        audio: list[Samples] = []
        async with self.connection.open("/v1/audio/speech", call, json=body) as response:
            whole.worker = response.headers.get(_WORKER_HEADER)
            rate = whole.sample_rate = int(response.headers.get("x-sample-rate", DEFAULT_SAMPLE_RATE))
            rest = b""
            async for data in response.aiter_bytes():
                data = rest + data
                even = len(data) & ~1
                data, rest = data[:even], data[even:]
                if data:
                    audio.append(decode_pcm(data))
                    if stream:
                        yield GenerateChunk(call.id, modality="audio", audio_data=audio[-1], sample_rate=rate)
        whole.audio_data = np.concatenate(audio) if audio else None
        yield whole

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
        segments: list[TranscriptionSegment] = []
        async with (
            self.connection.open(path, call, **content) as response,
            aclosing(events_of(response)) as events,
        ):
            async for event in events:
                if event["type"] == "transcript.text.done":
                    whole = transcript_chunk(call.id, event, response.headers.get(_WORKER_HEADER))
                    whole.segments = segments
                    yield whole
                    return
                if event["type"] == "transcript.text.delta":
                    chunk = transcript_delta(call.id, event)
                    segments += chunk.segments
                    yield chunk
        raise self._cut_off(call)

    def _cut_off(self, call: HttpCall) -> ClientError:
        return ClientError(f"the stream from {self.connection.base_url} was cut off {call}")
