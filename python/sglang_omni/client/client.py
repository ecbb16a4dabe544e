"""The asynchronous client: completions, speech and transcripts of a pipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, Unpack

from sglang_omni.client.types import (
    AbortResult,
    CompletionStreamChunk,
    ModelInfo,
    SpeechStreamChunk,
    VoiceList,
)
from sglang_omni.generation.answer import AnswerBuilder, GenerateChunk
from sglang_omni.generation.errors import ClientError
from sglang_omni.generation.local import CoordinatorLike, LocalTransport
from sglang_omni.generation.request import (
    GenerateRequest,
    TranscriptionOptions,
    transcription_request,
)
from sglang_omni.generation.results import (
    CompletionResult,
    PartEncoder,
    SpeechResult,
    TranscriptionResult,
    to_completion,
    to_speech,
)
from sglang_omni.generation.samples import DEFAULT_SAMPLE_RATE
from sglang_omni.generation.transport import Transport

if TYPE_CHECKING:
    from sglang_omni.client.http import HttpTransport
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
        transport: The way to it, or to the server.
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
        self.transport: Transport
        self.coordinator: CoordinatorLike | None = None
        self._server: HttpTransport | None = None
        if isinstance(target, str):
            from sglang_omni.client.http import HttpTransport

            self.transport = self._server = HttpTransport(target, api_key=api_key, max_retries=max_retries)
        else:
            self.coordinator = target
            self.transport = LocalTransport(target)

    async def generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Yields what is new, as it comes; the last chunk, with ``finish_reason``, is the whole answer."""
        request.check()
        answer = AnswerBuilder()
        async with aclosing(self.transport.parts(request, request_id)) as parts:
            async for part in parts:
                answer.join(part)
                yield part if part.finish_reason is None else answer.whole()

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
            on_chunk: Called with the chunks that it is joined from, each with what is new. Over HTTP, that
                takes a codec for the audio here.
        """
        request.check()
        if self._server is not None and on_chunk is None:
            return await self._server.completion(request, request_id, audio_format)
        return await to_completion(await self.transport.whole(request, request_id, on_chunk), audio_format)

    async def completion_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, audio_format: str = "wav"
    ) -> AsyncGenerator[CompletionStreamChunk, None]:
        """Yields what is new, as it comes.

        Joined, the ``audio_b64`` of all chunks are one file in ``audio_format``, whose header does not have
        its length, or raw samples for ``pcm16``.
        """
        request = replace(request, stream=True)
        request.check()
        encoder = PartEncoder(audio_format)
        async with aclosing(self.transport.parts(request, request_id)) as parts:
            async for part in parts:
                audio_b64 = await encoder.encode(part)
                yield CompletionStreamChunk(
                    request_id=part.request_id,
                    text=part.text,
                    modality=part.modality,
                    audio_b64=audio_b64,
                    sample_rate=encoder.sample_rate,
                    finish_reason=part.finish_reason,
                    usage=part.usage,
                    stage_name=part.stage_name,
                    audio_seconds=part.audio_seconds,
                    **part.shared(),
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
        if self._server is not None:
            return await self._server.speech(request, request_id, response_format)
        return await to_speech(await self.transport.whole(request, request_id), response_format)

    async def speech_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, speed: float = 1.0
    ) -> AsyncGenerator[SpeechStreamChunk, None]:
        """Speaks ``request.prompt``; yields the sound as it comes."""
        request = _spoken(request, speed, stream=True)
        async with aclosing(self.transport.parts(request, request_id)) as parts:
            async for part in parts:
                if (samples := part.samples) is not None:
                    yield SpeechStreamChunk(part.request_id, samples, part.sample_rate or DEFAULT_SAMPLE_RATE)

    async def transcribe(
        self, audio: bytes, *, request_id: str | None = None, **options: Unpack[TranscriptionOptions]
    ) -> TranscriptionResult:
        """Transcribes an encoded audio file."""
        return await self.transcript(transcription_request(audio, **options), request_id=request_id)

    async def transcript(
        self, request: GenerateRequest, *, request_id: str | None = None
    ) -> TranscriptionResult:
        """The whole transcript of a ``transcription_request``."""
        request.check()
        return TranscriptionResult.of(await self.transport.whole(request, request_id))

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

        base_url, headers = self._over_http("realtime").address()
        fields = session_fields(instructions, voice, speak, detect_turns, session)
        return RealtimeSession(base_url, headers, model, fields)

    async def models(self) -> list[ModelInfo]:
        """The models that the server serves.

        Raises:
            ClientError: The client has a coordinator, not a base URL; so of ``voices``.
        """
        return await self._over_http("models").models()

    async def voices(self) -> VoiceList:
        """The voices of the server's model."""
        return await self._over_http("voices").voices()

    async def abort(self, request_id: str, *, owner: str | None = None) -> AbortResult:
        """Ends the running request of this id, among those of ``owner`` (``GenerateRequest.owner``)."""
        return AbortResult(await self.transport.abort(request_id, owner=owner))

    def health(self) -> dict[str, Any]:
        """The service's state; ``running``: it takes requests. Over HTTP, blocks for a round trip."""
        return self.transport.health()

    def _over_http(self, what: str) -> HttpTransport:
        if self._server is None:
            raise ClientError(f"{what}: only a server has that; use a client of its base URL")
        return self._server

    async def close(self) -> None:
        """Closes the client's connections; a coordinator goes on."""
        await self.transport.close()

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
