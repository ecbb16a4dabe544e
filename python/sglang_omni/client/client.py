"""The asynchronous client: completions, speech and transcripts of a pipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from sglang_omni.client.audio import AudioFileEncoder, Base64Pieces
from sglang_omni.client.local import CoordinatorLike, LocalTransport
from sglang_omni.client.observer import RequestObserver
from sglang_omni.client.transport import Deltas, Transport
from sglang_omni.client.types import (
    AbortResult,
    CompletionResult,
    CompletionStreamChunk,
    GenerateChunk,
    GenerateRequest,
    ModelInfo,
    SpeechResult,
    SpeechStreamChunk,
    TranscriptionResult,
    VoiceList,
)

if TYPE_CHECKING:
    from sglang_omni.client.realtime.session import RealtimeSession


class Client:
    """An asynchronous client of a coordinator in this process or of a server's base URL.

    Both raise the same errors: ``RequestError`` if the request is at fault, ``RuntimeError`` with the stage's
    name if the service is, ``TimeoutError`` after the request's own timeout. Cancelling a call, or leaving an
    iteration early, aborts the request.

        async with Client("http://127.0.0.1:8000") as client:
            request = GenerateRequest(messages=[{"role": "user", "content": "Hello"}])
            print((await client.completion(request)).text)

    Args:
        coordinator: A coordinator, or a base URL.
        base_url: The URL of any server with OpenAI's API, with or without a final ``/v1``.
        api_key: Sent as a bearer token.
        max_retries: How often a request over HTTP is repeated at most, before the first byte of its answer:
            if the server cannot be reached, or answers 429 or 503; if the connection is lost, only with a
            ``request_id`` of the caller's, which the server refuses to run twice at once.

    Attributes:
        coordinator: The coordinator it was given; None over a base URL.
    """

    def __init__(
        self,
        coordinator: CoordinatorLike | str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
    ) -> None:
        target = coordinator if base_url is None else base_url
        if target is None or (coordinator is not None and base_url is not None):
            raise TypeError("Client takes either a coordinator or a base URL")
        self._transport: Transport
        self.coordinator: CoordinatorLike | None = None
        if isinstance(target, str):
            from sglang_omni.client.http import HttpTransport

            self._transport = HttpTransport(target, api_key=api_key, max_retries=max_retries)
        else:
            self.coordinator = target
            self._transport = LocalTransport(target)

    async def generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Yields chunks as they come; the last one, with ``finish_reason``, is the whole result."""
        request.check()
        async with aclosing(self._transport.generate(request, request_id)) as chunks:
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
        return await self._transport.completion(request, request_id, audio_format, on_chunk)

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
                    audio_seconds=0.0 if samples is None else len(samples) / deltas.sample_rate,
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
        request = _spoken(request, speed, stream=False)
        return await self._transport.speech(request, request_id, response_format)

    async def speech_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, speed: float = 1.0
    ) -> AsyncGenerator[SpeechStreamChunk, None]:
        """Speaks ``request.prompt``; yields the sound as it comes."""
        request = _spoken(request, speed, stream=True)
        deltas = Deltas()
        async with aclosing(self._transport.generate(request, request_id)) as chunks:
            async for chunk in chunks:
                samples = deltas.new_audio(chunk)
                if samples is not None:
                    yield SpeechStreamChunk(chunk.request_id, samples, deltas.sample_rate)

    async def transcribe(
        self,
        audio: bytes,
        *,
        session_id: str | None = None,
        owner: str | None = None,
        model: str | None = None,
        language: str | None = None,
        prompt: str | None = None,
        temperature: float | None = None,
        word_timestamps: bool = False,
        translate: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
        timings: bool = False,
    ) -> TranscriptionResult:
        """Transcribes an encoded audio file.

        ``session_id``, ``owner``, ``model`` and ``timings`` are as the fields of ``GenerateRequest``, and all
        else is as in ``transcription_request``.

        Args:
            audio: The file.
            timeout: In seconds.
        """
        request = transcription_request(
            audio,
            session_id=session_id,
            owner=owner,
            model=model,
            language=language,
            prompt=prompt,
            temperature=temperature,
            word_timestamps=word_timestamps,
            translate=translate,
            timeout=timeout,
            timings=timings,
        )
        return await self.transcript(request, request_id=request_id)

    async def transcript(
        self, request: GenerateRequest, *, request_id: str | None = None
    ) -> TranscriptionResult:
        """The whole transcript of a ``transcription_request``."""
        request.check()
        collected, last = await self._transport.collect(request, request_id)
        return TranscriptionResult(
            collected.text, last.language, last.duration, last.segments, last.timings, last.worker
        )

    def realtime(
        self,
        *,
        model: str | None = None,
        instructions: str | None = None,
        voice: str | None = None,
        speak: bool = True,
        detect_turns: bool | dict[str, Any] = True,
        session: dict[str, Any] | None = None,
    ) -> RealtimeSession:
        """A spoken conversation over ``/v1/realtime``, with any server that speaks OpenAI's protocol.

            async with client.realtime(instructions="Be brief.") as session:
                answer = await session.ask("Hello")

        Args:
            instructions: The system prompt.
            speak: False for answers in text alone.
            detect_turns: True if the server is to hear when the speaker has ended; False if ``commit`` says
                so; or OpenAI's object ``turn_detection``.
            session: Further fields of OpenAI's object ``session``.

        Raises:
            ClientError: The client has a coordinator, not a base URL.
        """
        from sglang_omni.client.realtime.session import RealtimeSession
        from sglang_omni.client.realtime.settings import session_fields

        base_url, headers = self._transport.address()
        fields = session_fields(instructions, voice, speak, detect_turns, session)
        return RealtimeSession(base_url, headers, model, fields)

    async def models(self) -> list[ModelInfo]:
        """The models that the server serves."""
        return await self._transport.models()

    async def voices(self) -> VoiceList:
        """The voices of the server's model."""
        return await self._transport.voices()

    async def abort(self, request_id: str, *, owner: str | None = None) -> AbortResult:
        """Ends the running request of this id, among those of ``owner`` (``GenerateRequest.owner``)."""
        return AbortResult(await self._transport.abort(request_id, owner=owner))

    def health(self) -> dict[str, Any]:
        """The service's state; ``running``: it takes requests. Over HTTP, blocks for a round trip."""
        return self._transport.health()

    def observe(self, observer: RequestObserver) -> None:
        """Tells ``observer`` of every later request, if they go to a coordinator in this process."""
        if isinstance(self._transport, LocalTransport):
            self._transport.observer = observer

    def require_answers(self) -> None:
        """Makes a result that is no answer to its request's task a ClientError, which says what is expected
        of which stage, if requests go to a coordinator in this process."""
        if isinstance(self._transport, LocalTransport):
            self._transport.must_answer = True

    async def close(self) -> None:
        """Closes the client's connections; a coordinator goes on."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


def _spoken(request: GenerateRequest, speed: float, *, stream: bool) -> GenerateRequest:
    """The request to speak its prompt."""
    extra = {**request.extra_params, "speed": speed} if speed != 1.0 else request.extra_params
    request = replace(
        request,
        stream=stream,
        extra_params=extra,
        output_modalities=["audio"],
        metadata={"task": "speech", **request.metadata},
    )
    request.check()
    return request


def transcription_request(
    audio: bytes,
    *,
    language: str | None = None,
    prompt: str | None = None,
    temperature: float | None = None,
    word_timestamps: bool = False,
    translate: bool = False,
    stream: bool = False,
    **fields: Any,
) -> GenerateRequest:
    """The request for the transcript of an encoded audio file.

    Streamed (``Client.generate``), each chunk has the text and the segments that are new.

    Args:
        language: Of the speech, as a name or a code; None leaves it to the model.
        prompt: Text that came before, or words to expect.
        temperature: Above 0 the text is drawn, at 0 or None it is the likeliest.
        word_timestamps: Whether segments have the times of their words.
        translate: True for a transcript in English.
        stream: Whether the text comes in parts.
        fields: Other fields of ``GenerateRequest``.
    """
    params = {
        "language": language,
        "prompt": prompt,
        "temperature": temperature,
        "word_timestamps": word_timestamps or None,
    }
    return GenerateRequest(
        audio=audio,
        stream=stream,
        extra_params={name: value for name, value in params.items() if value is not None},
        metadata={"task": "translation" if translate else "transcription"},
        **fields,
    )
