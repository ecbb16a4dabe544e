"""The base class of the client's transports, and the collection of a request's chunks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from fractions import Fraction
from typing import Any

import numpy as np

from sglang_omni.client.audio import (
    DEFAULT_SAMPLE_RATE,
    Resampler,
    Samples,
    audio_to_base64,
    encodable_rate,
    encode_audio,
    no_audio,
    to_mono,
)
from sglang_omni.client.request_id import new_request_id
from sglang_omni.client.types import (
    ClientError,
    CompletionAudio,
    CompletionResult,
    GenerateChunk,
    GenerateRequest,
    ModelInfo,
    SpeechResult,
    TokenLogprob,
    ToolCall,
    VoiceList,
)


class Deltas:
    """Tells what each chunk adds: all of a part, and of the last chunk what no part had.

    The last chunk is the whole result, and it alone has a ``finish_reason``; every transport ensures that. A
    final text that does not begin with the streamed one adds nothing: the streamed text stands.

    Attributes:
        sample_rate: Of the samples returned last, in Hz.
    """

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.tokens = 0
        self.sample_rate = DEFAULT_SAMPLE_RATE
        self._seconds = Fraction(0)
        self._logprobs = 0
        # The arguments of each tool call so far, by its index.
        self._arguments: dict[int, str] = {}

    def new_text(self, chunk: GenerateChunk) -> str:
        text = chunk.text or ""
        if chunk.finish_reason is not None and self.text:
            text = text[len(self.text) :] if text.startswith(self.text) else ""
        self.text += text
        return text

    def new_reasoning(self, chunk: GenerateChunk) -> str:
        reasoning = chunk.reasoning
        if chunk.finish_reason is not None:
            reasoning = reasoning[len(self.reasoning) :]
        self.reasoning += reasoning
        return reasoning

    def new_logprobs(self, chunk: GenerateChunk) -> list[TokenLogprob]:
        logprobs = chunk.logprobs
        if chunk.finish_reason is not None:
            logprobs = logprobs[self._logprobs :]
        self._logprobs += len(logprobs)
        return logprobs

    def new_tool_calls(self, chunk: GenerateChunk) -> list[ToolCall]:
        """What the chunk adds to the calls; a call's name and id come with its first piece."""
        if chunk.finish_reason is None:
            for call in chunk.tool_calls:
                self._arguments[call.index] = self._arguments.get(call.index, "") + call.arguments
            return chunk.tool_calls
        new = []
        for call in chunk.tool_calls:
            told = self._arguments.get(call.index)
            if told is None:
                new.append(call)
            elif len(call.arguments) > len(told):
                new.append(ToolCall(call.index, arguments=call.arguments[len(told) :]))
        return new

    def new_token_ids(self, chunk: GenerateChunk) -> list[int]:
        token_ids = chunk.token_ids
        if chunk.finish_reason is not None:
            token_ids = token_ids[self.tokens :]
        self.tokens += len(token_ids)
        return token_ids

    def new_audio(self, chunk: GenerateChunk) -> Samples | None:
        self.sample_rate = chunk.sample_rate or self.sample_rate
        if chunk.audio_data is None:
            return None
        samples = to_mono(chunk.audio_data)
        if chunk.finish_reason is not None:
            samples = samples[round(self._seconds * self.sample_rate) :]
        self._seconds += Fraction(len(samples), self.sample_rate)
        return samples if len(samples) else None


class Collected:
    """The joined chunks of one request."""

    def __init__(self) -> None:
        self.text = ""
        self.last: GenerateChunk | None = None
        self.input_transcript: str | None = None
        self._audio: list[Samples] = []
        self._deltas = Deltas()
        self._resampler: Resampler | None = None

    def add(self, chunk: GenerateChunk) -> None:
        self.text += self._deltas.new_text(chunk)
        audio = self._deltas.new_audio(chunk)
        if audio is not None:
            rate = self._deltas.sample_rate
            self._resampler = self._resampler or Resampler(rate)
            self._audio.append(self._resampler.add(audio, rate))
        self.input_transcript = chunk.input_transcript or self.input_transcript
        self.last = chunk

    @property
    def sample_rate(self) -> int:
        """Of ``audio``, in Hz."""
        return DEFAULT_SAMPLE_RATE if self._resampler is None else self._resampler.rate

    def audio(self) -> Samples | None:
        """All samples, of shape (samples,), at the first part's rate; None if there are none."""
        if self._resampler is None:
            return None
        self._audio = [np.concatenate([*self._audio, self._resampler.finish()])]
        return self._audio[0]


_OVER_HTTP = "only a server has that; use a client of its base URL"


class Transport(ABC):
    """A connection to a pipeline. A request without an id gets a random one.

    Every method may raise RequestError (the request is at fault), RuntimeError (the service is) and
    TimeoutError. Requests have passed ``GenerateRequest.check``.
    """

    @abstractmethod
    def generate(
        self, request: GenerateRequest, request_id: str | None
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Yields the request's chunks. Leaving the iteration early aborts the request."""

    @abstractmethod
    async def abort(self, request_id: str, *, owner: str | None = None) -> bool: ...

    @abstractmethod
    def health(self) -> dict[str, Any]: ...

    async def models(self) -> list[ModelInfo]:
        raise ClientError(f"models: {_OVER_HTTP}")

    async def voices(self) -> VoiceList:
        raise ClientError(f"voices: {_OVER_HTTP}")

    def address(self) -> tuple[str, dict[str, str]]:
        """The base URL, and the headers that show the key."""
        raise ClientError(f"realtime: {_OVER_HTTP}")

    async def close(self) -> None:
        return None

    async def collect(
        self,
        request: GenerateRequest,
        request_id: str | None,
        on_chunk: Callable[[GenerateChunk], None] | None = None,
    ) -> tuple[Collected, GenerateChunk]:
        request_id = request_id or new_request_id()
        collected = Collected()
        async with aclosing(self.generate(request, request_id)) as chunks:
            async for chunk in chunks:
                collected.add(chunk)
                if on_chunk is not None:
                    on_chunk(chunk)
        if collected.last is None:
            raise ClientError(f"request {request_id!r}: the pipeline gave no result")
        return collected, collected.last

    async def completion(
        self,
        request: GenerateRequest,
        request_id: str | None,
        audio_format: str,
        on_chunk: Callable[[GenerateChunk], None] | None = None,
    ) -> CompletionResult:
        request_id = request_id or new_request_id()
        collected, last = await self.collect(request, request_id, on_chunk)
        audio = None
        samples = collected.audio()
        if samples is not None:
            data = await asyncio.to_thread(
                audio_to_base64,
                samples,
                sample_rate=collected.sample_rate,
                output_format=audio_format,
            )
            audio = CompletionAudio(f"audio-{request_id}", data, collected.text or None)
        return CompletionResult(
            request_id=request_id,
            text=collected.text,
            audio=audio,
            finish_reason=last.finish_reason or "stop",
            usage=last.usage,
            input_transcript=collected.input_transcript,
            token_ids=last.token_ids,
            timings=last.timings,
            worker=last.worker,
            audio_codes=last.audio_codes,
            result=last.result,
            reasoning=last.reasoning,
            tool_calls=last.tool_calls,
            logprobs=last.logprobs,
            prompt_logprobs=last.prompt_logprobs,
        )

    async def speech(
        self, request: GenerateRequest, request_id: str | None, response_format: str
    ) -> SpeechResult:
        request_id = request_id or new_request_id()
        collected, last = await self.collect(request, request_id)
        samples = collected.audio()
        if samples is None:
            raise no_audio(last.finish_reason)
        data, mime = await asyncio.to_thread(
            encode_audio,
            samples,
            response_format=response_format,
            sample_rate=collected.sample_rate,
        )
        return SpeechResult(
            audio_bytes=data,
            mime_type=mime,
            format=response_format,
            sample_rate=encodable_rate(response_format, collected.sample_rate),
            usage=last.usage,
            timings=last.timings,
            worker=last.worker,
            finish_reason=last.finish_reason or "stop",
        )
