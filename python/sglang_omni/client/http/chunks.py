"""What a server has answered to a chat or a completion, as chunks: whole bodies and the events of streams."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from sglang_omni.client.http.call import HttpCall
from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import TokenLogprob, ToolCall, UsageInfo
from sglang_omni.generation.results import CompletionAudio, CompletionResult
from sglang_omni.generation.samples import DEFAULT_SAMPLE_RATE, decode_pcm, decode_wav


def completion_chunk(call: HttpCall, fields: dict[str, Any], worker: str | None) -> GenerateChunk:
    """The one part of an answer that came as a whole, its sound decoded."""
    chunk = _whole(call, fields, worker)
    if audio := _message(fields).get("audio"):
        chunk.audio_data, chunk.sample_rate = decode_wav(base64.b64decode(audio["data"]))
    return chunk


def completion_result(call: HttpCall, fields: dict[str, Any], worker: str | None) -> CompletionResult:
    """A whole completion, its sound as the server has encoded it."""
    audio = _message(fields).get("audio")
    encoded = CompletionAudio(audio["id"], audio["data"], audio.get("transcript")) if audio else None
    return CompletionResult.of(_whole(call, fields, worker), encoded)


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    return fields["choices"][0].get("message") or {}


def _whole(call: HttpCall, fields: dict[str, Any], worker: str | None) -> GenerateChunk:
    """From the body of a chat or text completion, without its sound."""
    choice, message = fields["choices"][0], _message(fields)
    audio = message.get("audio") or {}
    chunk = GenerateChunk(
        call.id,
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
    if call.request.sampling.prompt_logprobs is not None:
        _split_echo(chunk, call, choice)
    return chunk


def _split_echo(chunk: GenerateChunk, call: HttpCall, choice: dict[str, Any]) -> None:
    """Takes the prompt off an answer that begins with it, for the sake of its log-probabilities."""
    sampling = call.request.sampling
    count = (chunk.usage.prompt_tokens if chunk.usage else None) or 0
    chunk.prompt_logprobs = [
        replace(token, top=token.top[: sampling.prompt_logprobs]) for token in chunk.logprobs[:count]
    ]
    offsets = (choice.get("logprobs") or {}).get("text_offset") or []
    chunk.text = chunk.text[offsets[count] :] if count < len(offsets) else ""
    chunk.logprobs = (
        []
        if sampling.logprobs is None
        else [replace(token, top=token.top[: sampling.logprobs]) for token in chunk.logprobs[count:]]
    )


def delta_chunk(request_id: str, event: dict[str, Any]) -> GenerateChunk:
    """A chunk, from one event of a chat or text completion's stream: of the first of its answers."""
    chunk = GenerateChunk(
        request_id,
        usage=UsageInfo.from_dict(event.get("usage")),
        input_transcript=event.get("heard"),
        timings=event.get("timings"),
    )
    for choice in event.get("choices") or ():
        if choice.get("index"):
            continue
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
    """Those of a chat's tokens, or in the lists of a completion; an id that a server does not send is -1."""
    sent = choice.get("logprobs") or {}
    if "tokens" in sent:
        lists = (
            sent["tokens"],
            sent["token_logprobs"],
            sent.get("top_logprobs") or [None] * len(sent["tokens"]),
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
        for token in sent.get("content") or ()
    ]


def _logprob(token: dict[str, Any]) -> TokenLogprob:
    return TokenLogprob(
        token["token"], token.get("token_id", -1), token["logprob"], bytes(token.get("bytes") or ())
    )
