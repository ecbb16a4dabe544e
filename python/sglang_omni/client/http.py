"""The client's transport over HTTP: OpenAI's API with the additions of this package's servers."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import numpy as np

from sglang_omni.client.audio import DEFAULT_SAMPLE_RATE, Samples, decode_pcm, decode_wav
from sglang_omni.client.http_errors import error_of_event, error_of_response
from sglang_omni.client.http_transcripts import (
    TRANSCRIPT_PATHS,
    transcript_chunk,
    transcript_delta,
    transcript_form,
)
from sglang_omni.client.request_id import HEADER, OWNER_HEADER, is_usable, new_request_id
from sglang_omni.client.transport import Transport
from sglang_omni.client.types import (
    ClientError,
    CompletionAudio,
    CompletionResult,
    GenerateChunk,
    GenerateRequest,
    SpeechResult,
    TokenLogprob,
    ToolCall,
    TranscriptionSegment,
    UsageInfo,
    join_tool_calls,
)

_WORKER_HEADER = "x-sglang-omni-worker"
# What is told of an answer whose body is a file.
_TIMINGS_HEADER = "x-sglang-omni-timings"
_FINISH_HEADER = "x-finish-reason"
_HEALTH_TIMEOUT = 5.0
# Fields of a chunk that are worth telling.
_NEWS = ("text", "input_transcript", "reasoning", "tool_calls", "logprobs")


class HttpTransport(Transport):
    """
    Args:
        base_url: The server's URL, with or without a final ``/v1``.
        api_key: Sent as a bearer token.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # No read timeout: each request has its own.
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=self._headers,
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        # The abort is a request of its own, with its own id.
        body, asked = {"request_id": request_id}, GenerateRequest(owner=owner)
        answer = await self._send("/abort_request", asked, new_request_id(), json=body)
        return bool(answer.json().get("success"))

    def health(self) -> dict[str, Any]:
        try:
            answer = httpx.get(
                f"{self.base_url}/health", headers=self._headers, timeout=_HEALTH_TIMEOUT, trust_env=False
            )
        except httpx.HTTPError as exc:
            return {"running": False, "status": "unreachable", "error": str(exc) or type(exc).__name__}
        try:
            fields = answer.json()
        except ValueError:
            fields = {}
        state = fields if isinstance(fields, dict) else {}
        return {**state, "running": bool(state.get("running", answer.is_success)) and answer.is_success}

    async def generate(
        self, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        if request.task in TRANSCRIPT_PATHS:
            async for chunk in self._transcript(request, request_id):
                yield chunk
        elif request.task == "speech":
            async for chunk in self._spoken(request, request_id):
                yield chunk
        elif request.stream:
            path, body = _completion_body(request, request_id, audio_format="pcm16")
            body["stream_options"] = {"include_usage": True}
            async for chunk in self._streamed(request, request_id, path, body):
                yield chunk
        else:
            path, body = _completion_body(request, request_id, audio_format="wav")
            answer = await self._send(path, request, request_id, json=body)
            yield _completion_chunk(request_id, answer.json(), answer.headers.get(_WORKER_HEADER))

    async def completion(
        self,
        request: GenerateRequest,
        request_id: str,
        audio_format: str,
        on_chunk: Callable[[GenerateChunk], None] | None = None,
    ) -> CompletionResult:
        # The server encodes the audio: the client needs no codec.
        path, body = _completion_body(request, request_id, audio_format=audio_format)
        answer = await self._send(path, request, request_id, json=body | {"stream": False})
        fields, worker = answer.json(), answer.headers.get(_WORKER_HEADER)
        chunk = _completion_chunk(request_id, fields, worker, decode_audio=False)
        spoken = (fields["choices"][0].get("message") or {}).get("audio")
        audio = CompletionAudio(spoken["id"], spoken["data"], spoken.get("transcript")) if spoken else None
        return CompletionResult(
            request_id=request_id,
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

    async def speech(self, request: GenerateRequest, request_id: str, response_format: str) -> SpeechResult:
        body = _speech_body(request, request_id) | {"response_format": response_format}
        answer = await self._send("/v1/audio/speech", request, request_id, json=body)
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

    async def _streamed(
        self, request: GenerateRequest, request_id: str, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[GenerateChunk, None]:
        whole = GenerateChunk(request_id, sample_rate=DEFAULT_SAMPLE_RATE)
        audio: list[Samples] = []
        async with self._open(path, request, request_id, json=body) as response:
            whole.worker = response.headers.get(_WORKER_HEADER)
            async for event in _events(response):
                chunk = _delta_chunk(request_id, event)
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
            raise ClientError(f"the stream from {self.base_url} was cut off {_of(request_id)}")
        if audio:
            whole.audio_data = np.concatenate(audio)
        yield whole

    async def _spoken(self, request: GenerateRequest, request_id: str) -> AsyncGenerator[GenerateChunk, None]:
        body = _speech_body(request, request_id) | {"response_format": "pcm", "stream": request.stream}
        whole = GenerateChunk(request_id, modality="audio", finish_reason="stop")
        audio: list[Samples] = []
        async with self._open("/v1/audio/speech", request, request_id, json=body) as response:
            whole.worker = response.headers.get(_WORKER_HEADER)
            rate = whole.sample_rate = int(response.headers.get("x-sample-rate", DEFAULT_SAMPLE_RATE))
            rest = b""
            async for data in response.aiter_bytes():
                data = rest + data
                even = len(data) & ~1
                data, rest = data[:even], data[even:]
                if data:
                    audio.append(decode_pcm(data))
                    if request.stream:
                        yield GenerateChunk(
                            request_id, modality="audio", audio_data=audio[-1], sample_rate=rate
                        )
        whole.audio_data = np.concatenate(audio) if audio else None
        yield whole

    async def _transcript(
        self, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        path, content = transcript_form(request, request_id)
        if not request.stream:
            answer = await self._send(path, request, request_id, **content)
            yield transcript_chunk(request_id, answer.json(), answer.headers.get(_WORKER_HEADER))
            return
        segments: list[TranscriptionSegment] = []
        async with self._open(path, request, request_id, **content) as response:
            async for event in _events(response):
                if event["type"] == "transcript.text.done":
                    whole = transcript_chunk(request_id, event, response.headers.get(_WORKER_HEADER))
                    whole.segments = segments
                    yield whole
                    return
                chunk = transcript_delta(request_id, event)
                segments += chunk.segments
                yield chunk
        raise ClientError(f"the stream from {self.base_url} was cut off {_of(request_id)}")

    async def _send(
        self, path: str, request: GenerateRequest, request_id: str, **content: Any
    ) -> httpx.Response:
        async with _reported(self.base_url, request_id):
            response = await self._http.post(
                path, timeout=_timeout(request), headers=_headers(request, request_id), **content
            )
            if not response.is_success:
                raise error_of_response(response)
            return response

    @asynccontextmanager
    async def _open(
        self, path: str, request: GenerateRequest, request_id: str, **content: Any
    ) -> AsyncIterator[httpx.Response]:
        async with (
            _reported(self.base_url, request_id),
            self._http.stream(
                "POST", path, timeout=_timeout(request), headers=_headers(request, request_id), **content
            ) as response,
        ):
            if not response.is_success:
                await response.aread()
                raise error_of_response(response)
            yield response


def _headers(request: GenerateRequest, request_id: str) -> httpx.Headers:
    """Headers with the request's id, session and owner. The server refuses an unusable id in the body."""
    headers = {HEADER: request_id} if is_usable(request_id) else {}
    session = request.session_id or request.metadata.get("session_id")
    if session is not None:
        headers["x-session-id"] = str(session)
    if request.owner is not None:
        headers[OWNER_HEADER] = request.owner
    return httpx.Headers(headers, encoding="utf-8")


def _of(request_id: str) -> str:
    return f"(request {request_id!r})"


@asynccontextmanager
async def _reported(base_url: str, request_id: str) -> AsyncIterator[None]:
    """Raises httpx's failures as the client's; failures of the service name the request."""
    try:
        yield
    except httpx.TimeoutException as exc:
        text = f"no answer from {base_url} in time ({type(exc).__name__}) {_of(request_id)}"
        raise TimeoutError(text) from exc
    except httpx.HTTPError as exc:
        text = f"no answer from {base_url}: {str(exc) or type(exc).__name__} {_of(request_id)}"
        raise ClientError(text) from exc
    except ClientError as exc:
        raise ClientError(f"{exc} {_of(request_id)}", status=exc.status) from None
    except TimeoutError as exc:
        raise TimeoutError(f"{exc} {_of(request_id)}") from None


def _timeout(request: GenerateRequest) -> httpx.Timeout:
    # The server enforces the request's timeout; the margin lets its error arrive.
    return httpx.Timeout(None if request.timeout is None else request.timeout + 5.0, connect=10.0)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream.

    Raises:
        RequestError, TimeoutError, ClientError: The stream carried an error.
    """
    async for line in _lines(response):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise error_of_event(event["error"])
        yield event


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Lines ended by LF alone, as in event streams; ``aiter_lines`` would also split at U+2028."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _completion_body(
    request: GenerateRequest, request_id: str, *, audio_format: str
) -> tuple[str, dict[str, Any]]:
    """The path and JSON body of a chat or text completion."""
    body: dict[str, Any] = request.sampling.to_dict()
    most = body.pop("max_new_tokens", None) if request.max_tokens is None else request.max_tokens
    body.pop("max_new_tokens", None)
    extra = dict(request.extra_params)
    body |= _common(request, request_id) | {"stream": request.stream}
    if most is not None:
        body["max_tokens"] = most
    if request.messages is None:
        body["prompt"] = request.prompt if request.prompt is not None else request.prompt_token_ids
        return "/v1/completions", body | extra
    body["messages"] = request.message_dicts
    if (likeliest := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": likeliest}
    if request.tools:
        body |= {"tools": request.tools, "parallel_tool_calls": request.parallel_tool_calls}
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.output_modalities is not None:
        body["modalities"] = request.output_modalities
        if "audio" in request.output_modalities:
            voice = extra.pop("voice", None)
            body["audio"] = {"format": audio_format} | ({"voice": voice} if voice else {})
    return "/v1/chat/completions", body | extra


def _speech_body(request: GenerateRequest, request_id: str) -> dict[str, Any]:
    return _common(request, request_id) | {"input": request.prompt} | request.extra_params


def _common(request: GenerateRequest, request_id: str) -> dict[str, Any]:
    body: dict[str, Any] = {"request_id": request_id}
    if request.model:
        body["model"] = request.model
    if request.timeout is not None:
        body["timeout"] = request.timeout
    if request.timings:
        body["timings"] = True
    stages = {stage: s.to_dict() for stage, s in (request.stage_sampling or {}).items()}
    for stage, own in (request.stage_params or {}).items():
        stages[stage] = {**stages.get(stage, {}), **own}
    if stages:
        body["stage_params"] = stages
    return body


def _completion_chunk(
    request_id: str, fields: dict[str, Any], worker: str | None, *, decode_audio: bool = True
) -> GenerateChunk:
    """The last chunk, from the body of a whole chat or text completion."""
    choice = fields["choices"][0]
    message = choice.get("message") or {}
    audio = message.get("audio") or {}
    chunk = GenerateChunk(
        request_id,
        text=choice.get("text") or message.get("content") or audio.get("transcript") or "",
        finish_reason=choice.get("finish_reason") or "stop",
        usage=UsageInfo.from_dict(fields.get("usage")),
        input_transcript=fields.get("heard"),
        timings=fields.get("timings"),
        token_ids=choice.get("token_ids") or [],
        audio_codes=audio.get("codes") or [],
        worker=worker,
        result=fields,
        reasoning=_reasoning(message),
        tool_calls=_tool_calls(message),
        logprobs=_logprobs(choice),
    )
    if audio and decode_audio:
        chunk.audio_data, chunk.sample_rate = decode_wav(base64.b64decode(audio["data"]))
    return chunk


def _delta_chunk(request_id: str, event: dict[str, Any]) -> GenerateChunk:
    """A chunk, from one event of a chat or text completion's stream."""
    chunk = GenerateChunk(
        request_id,
        usage=UsageInfo.from_dict(event.get("usage")),
        input_transcript=event.get("heard"),
        timings=event.get("timings"),
    )
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        audio = delta.get("audio") or {}
        chunk.text = choice.get("text") or delta.get("content") or audio.get("transcript") or ""
        chunk.finish_reason = choice.get("finish_reason")
        chunk.token_ids = choice.get("token_ids") or []
        chunk.audio_codes = audio.get("codes") or []
        chunk.reasoning = _reasoning(delta)
        chunk.tool_calls = _tool_calls(delta)
        chunk.logprobs = _logprobs(choice)
        if audio.get("data"):
            chunk.modality = "audio"
            chunk.audio_data = decode_pcm(base64.b64decode(audio["data"]))
            chunk.sample_rate = audio.get("sample_rate") or DEFAULT_SAMPLE_RATE
    return chunk


def _reasoning(message: dict[str, Any]) -> str:
    """Under DeepSeek's and SGLang's name, or vLLM's."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def _tool_calls(message: dict[str, Any]) -> list[ToolCall]:
    """The calls of a whole message, or what a delta adds to them."""
    calls = []
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        calls.append(
            ToolCall(
                call.get("index", place),
                call.get("id"),
                function.get("name"),
                function.get("arguments") or "",
            )
        )
    return calls


def _logprobs(choice: dict[str, Any]) -> list[TokenLogprob]:
    """Those of a chat's tokens, or in the lists of a completion; an id that a server does not tell is -1."""
    told = choice.get("logprobs") or {}
    if "tokens" in told:
        lists = (
            told["tokens"],
            told["token_logprobs"],
            told.get("top_logprobs") or [None] * len(told["tokens"]),
        )
        return [
            replace(
                _logprob({"token": token, "logprob": logprob}),
                top=[_logprob({"token": each, "logprob": value}) for each, value in (top or {}).items()],
            )
            for token, logprob, top in zip(*lists, strict=True)
        ]
    return [
        replace(_logprob(token), top=[_logprob(other) for other in token.get("top_logprobs") or ()])
        for token in told.get("content") or ()
    ]


def _logprob(token: dict[str, Any]) -> TokenLogprob:
    return TokenLogprob(
        token["token"], token.get("token_id", -1), token["logprob"], bytes(token.get("bytes") or ())
    )
