"""The blocking client, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Self, TypeVar

from sglang_omni.client.client import Client
from sglang_omni.client.local import CoordinatorLike
from sglang_omni.client.types import (
    AbortResult,
    CompletionResult,
    CompletionStreamChunk,
    GenerateChunk,
    GenerateRequest,
    SpeechResult,
    TranscriptionResult,
)

T = TypeVar("T")


class SyncClient:
    """``Client`` with blocking methods of the same names; usable from any thread, and from notebooks.

    With a base URL it runs an event loop in its own thread. A coordinator belongs to the loop on which it was
    started: pass that ``loop``, which must be running in another thread.

        with SyncClient("http://127.0.0.1:8000") as client:
            for chunk in client.completion_stream(GenerateRequest(messages=[...])):
                print(chunk.text, end="", flush=True)
    """

    def __init__(
        self,
        coordinator: CoordinatorLike | str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if loop is None and coordinator is not None and not isinstance(coordinator, str):
            raise TypeError("SyncClient over a coordinator needs the loop the coordinator runs on")
        self._thread: threading.Thread | None = None
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, name="sync-client", daemon=True)
            self._thread.start()
        self._loop = loop
        self._closed = False
        self._client = self._run(_build(coordinator, base_url, api_key))

    def generate(self, request: GenerateRequest, request_id: str | None = None) -> Iterator[GenerateChunk]:
        """Yields the request's chunks as they come; the last one is the whole result."""
        return self._iterate(self._client.generate(request, request_id))

    def completion(
        self, request: GenerateRequest, *, request_id: str | None = None, audio_format: str = "wav"
    ) -> CompletionResult:
        """The whole completion; its audio, if the request wants any, is encoded as ``audio_format``."""
        return self._run(self._client.completion(request, request_id=request_id, audio_format=audio_format))

    def completion_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, audio_format: str = "wav"
    ) -> Iterator[CompletionStreamChunk]:
        """Yields what is new, as it comes; joined, the ``audio_b64`` are one file in ``audio_format``."""
        return self._iterate(
            self._client.completion_stream(request, request_id=request_id, audio_format=audio_format)
        )

    def speech(
        self,
        request: GenerateRequest,
        *,
        request_id: str | None = None,
        response_format: str = "wav",
        speed: float = 1.0,
    ) -> SpeechResult:
        """Speaks ``request.prompt``, ``speed`` times as fast as the voice's own pace."""
        return self._run(
            self._client.speech(request, request_id=request_id, response_format=response_format, speed=speed)
        )

    def transcribe(
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
        """Transcribes an encoded audio file; see ``Client.transcribe``."""
        return self._run(
            self._client.transcribe(
                audio,
                session_id=session_id,
                owner=owner,
                model=model,
                language=language,
                prompt=prompt,
                temperature=temperature,
                word_timestamps=word_timestamps,
                translate=translate,
                request_id=request_id,
                timeout=timeout,
                timings=timings,
            )
        )

    def abort(self, request_id: str, *, owner: str | None = None) -> AbortResult:
        """Ends the running request of this id, among those of ``owner``."""
        return self._run(self._client.abort(request_id, owner=owner))

    def health(self) -> dict[str, Any]:
        return self._client.health()

    def close(self) -> None:
        if self._closed:
            return
        self._run(self._client.close())
        self._closed = True
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # For example Ctrl-C: cancelling the call aborts its request.
            future.cancel()
            raise

    def _iterate(self, chunks: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                chunk = self._run(_next(chunks))
                if chunk is None:
                    return
                yield chunk
        finally:
            if not self._closed:
                self._run(chunks.aclose())


async def _build(
    coordinator: CoordinatorLike | str | None, base_url: str | None, api_key: str | None
) -> Client:
    return Client(coordinator, base_url=base_url, api_key=api_key)


async def _next(chunks: AsyncGenerator[T, None]) -> T | None:
    return await anext(chunks, None)
