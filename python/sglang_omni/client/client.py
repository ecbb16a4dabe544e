"""The asynchronous client: completions, speech and transcripts of a pipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from sglang_omni.client.audio import AudioFileEncoder, Base64Pieces
from sglang_omni.client.local import CoordinatorLike, LocalTransport
from sglang_omni.client.request_id import new_request_id
from sglang_omni.client.transport import Deltas, Transport
from sglang_omni.client.types import (
    AbortResult,
    CompletionResult,
    CompletionStreamChunk,
    GenerateChunk,
    GenerateRequest,
    SpeechResult,
    TranscriptionResult,
)


class Client:
    """An asynchronous client of a coordinator in this process or of a server's base URL.

    Both raise the same errors: ``RequestError`` if the request is at fault, ``RuntimeError`` with the stage's
    name if the service is, ``TimeoutError`` after the request's own timeout. Cancelling a call, or leaving an
    iteration early, aborts the request.

        async with Client("http://127.0.0.1:8000") as client:
            request = GenerateRequest(messages=[{"role": "user", "content": "Hello"}])
            print((await client.completion(request)).text)

    Attributes:
        coordinator: The coordinator it was given; None over a base URL.
    """

    def __init__(
        self,
        coordinator: CoordinatorLike | str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        target = coordinator if base_url is None else base_url
        if target is None or (coordinator is not None and base_url is not None):
            raise TypeError("Client takes either a coordinator or a base URL")
        self._transport: Transport
        self.coordinator: CoordinatorLike | None = None
        if isinstance(target, str):
            from sglang_omni.client.http import HttpTransport

            self._transport = HttpTransport(target, api_key=api_key)
        else:
            self.coordinator = target
            self._transport = LocalTransport(target)

    async def generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Yields chunks as they come; the last one, with ``finish_reason``, is the whole result."""
        request.check()
        async with aclosing(self._transport.generate(request, request_id or new_request_id())) as chunks:
            async for chunk in chunks:
                yield chunk

    async def completion(
        self,
        request: GenerateRequest,
        *,
        request_id: str | None = None,
        audio_format: str = "wav",
        on_chunk: Callable[[GenerateChunk], None] | None = None,
    ) -> CompletionResult:
        """The whole completion; its audio, if the request wants any, is encoded as ``audio_format``.

        Args:
            on_chunk: Called with the chunks that it is joined from; over HTTP there are none.
        """
        request.check()
        return await self._transport.completion(
            request, request_id or new_request_id(), audio_format, on_chunk
        )

    async def completion_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, audio_format: str = "wav"
    ) -> AsyncGenerator[CompletionStreamChunk, None]:
        """Yields what is new, as it comes.

        Joined, the ``audio_b64`` of all chunks are one file in ``audio_format``, whose header does not tell
        its length, or raw samples for ``pcm16``.
        """
        request = replace(request, stream=True)
        deltas, encoder, pieces = Deltas(), AudioFileEncoder(audio_format), Base64Pieces()
        transcript: str | None = None
        async with aclosing(self.generate(request, request_id)) as chunks:
            async for chunk in chunks:
                text, samples = deltas.new_text(chunk), deltas.new_audio(chunk)
                is_last = chunk.finish_reason is not None
                data = b""
                if samples is not None:
                    data = await encoder.off_loop(encoder.encode, samples, deltas.sample_rate)
                if is_last:
                    data += await encoder.off_loop(encoder.finish)
                is_news = chunk.input_transcript is not None and transcript is None
                transcript = transcript or chunk.input_transcript
                yield CompletionStreamChunk(
                    request_id=chunk.request_id,
                    text=text,
                    token_ids=deltas.new_token_ids(chunk),
                    modality=chunk.modality,
                    audio_b64=pieces.add(data, last=is_last) or None,
                    sample_rate=encoder.sample_rate or None,
                    finish_reason=chunk.finish_reason,
                    usage=chunk.usage,
                    stage_name=chunk.stage_name,
                    input_transcript=transcript if is_news else None,
                    timings=chunk.timings,
                    worker=chunk.worker,
                    audio_codes=chunk.audio_codes,
                    reasoning=deltas.new_reasoning(chunk),
                    tool_calls=deltas.new_tool_calls(chunk),
                    logprobs=deltas.new_logprobs(chunk),
                    prompt_logprobs=chunk.prompt_logprobs,
                )

    async def speech(
        self,
        request: GenerateRequest,
        *,
        request_id: str | None = None,
        response_format: str = "wav",
        speed: float = 1.0,
    ) -> SpeechResult:
        """Speaks ``request.prompt``, ``speed`` times as fast as the voice's own pace."""
        extra = {**request.extra_params, "speed": speed} if speed != 1.0 else request.extra_params
        request = replace(
            request,
            stream=False,
            extra_params=extra,
            output_modalities=["audio"],
            metadata={"task": "speech", **request.metadata},
        )
        request.check()
        return await self._transport.speech(request, request_id or new_request_id(), response_format)

    async def transcribe(
        self,
        audio: bytes,
        *,
        session_id: str | None = None,
        owner: str | None = None,
        model: str | None = None,
        language: str | None = None,
        translate: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
        timings: bool = False,
    ) -> TranscriptionResult:
        """Transcribes an encoded audio file.

        Args:
            session_id, owner, model, timings: As the fields of ``GenerateRequest``.
            language: Of the speech, as a name or a code; None leaves it to the model.
            translate: True for a transcript in English.
            timeout: In seconds.
        """
        request = GenerateRequest(
            session_id=session_id,
            owner=owner,
            model=model,
            audio=audio,
            stream=False,
            extra_params={} if language is None else {"language": language},
            metadata={"task": "translation" if translate else "transcription"},
            timeout=timeout,
            timings=timings,
        )
        request.check()
        collected, last = await self._transport.collect(request, request_id or new_request_id())
        return TranscriptionResult(
            collected.text, last.language, last.duration, last.segments, last.timings, last.worker
        )

    async def abort(self, request_id: str, *, owner: str | None = None) -> AbortResult:
        """Ends the running request of this id, among those of ``owner`` (``GenerateRequest.owner``)."""
        return AbortResult(await self._transport.abort(request_id, owner=owner))

    def health(self) -> dict[str, Any]:
        """The service's state; ``running``: it takes requests. Over HTTP, blocks for a round trip."""
        return self._transport.health()

    async def close(self) -> None:
        """Closes the client's connections; a coordinator goes on."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
