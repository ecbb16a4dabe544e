"""The blocking client, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from sglang_omni.client.client import Client
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
from sglang_omni.generation.local import CoordinatorLike
from sglang_omni.generation.request import TranscriptionOptions

if TYPE_CHECKING:
    from sglang_omni.client.realtime.sync import SyncRealtimeSession

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
        max_retries: int = 2,
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
        self._client = self._run(_build(coordinator, base_url, api_key, max_retries))

    def generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> Generator[GenerateChunk, None, None]:
        """Yields the request's chunks as they come; the last one is the whole result."""
        return self._iterate(self._client.generate(request, request_id))

    def completion(
        self, request: GenerateRequest, *, request_id: str | None = None, audio_format: str = "wav"
    ) -> CompletionResult:
        """The whole completion; its audio, if the request wants any, is encoded as ``audio_format``."""
        return self._run(self._client.completion(request, request_id=request_id, audio_format=audio_format))

    def completion_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, audio_format: str = "wav"
    ) -> Generator[CompletionStreamChunk, None, None]:
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

    def speech_stream(
        self, request: GenerateRequest, *, request_id: str | None = None, speed: float = 1.0
    ) -> Generator[SpeechStreamChunk, None, None]:
        """Speaks ``request.prompt``; yields the sound as it comes."""
        return self._iterate(self._client.speech_stream(request, request_id=request_id, speed=speed))

    def transcribe(
        self, audio: bytes, *, request_id: str | None = None, **options: Unpack[TranscriptionOptions]
    ) -> TranscriptionResult:
        """Transcribes an encoded audio file."""
        return self._run(self._client.transcribe(audio, request_id=request_id, **options))

    def transcript(self, request: GenerateRequest, *, request_id: str | None = None) -> TranscriptionResult:
        """The whole transcript of a ``transcription_request``."""
        return self._run(self._client.transcript(request, request_id=request_id))

    def realtime(self, **options: Any) -> SyncRealtimeSession:
        """A spoken conversation; the arguments and, blocking, the methods are those of ``Client.realtime``.

        with client.realtime(instructions="Be brief.") as session:
            answer = session.ask("Hello")
        """
        from sglang_omni.client.realtime.sync import SyncRealtimeSession

        return SyncRealtimeSession(self._client.realtime(**options), self._run)

    def models(self) -> list[ModelInfo]:
        """The models that the server serves."""
        return self._run(self._client.models())

    def voices(self) -> VoiceList:
        """The voices of the server's model."""
        return self._run(self._client.voices())

    def abort(self, request_id: str, *, owner: str | None = None) -> AbortResult:
        """Ends the running request of this id, among those of ``owner``."""
        return self._run(self._client.abort(request_id, owner=owner))

    def health(self) -> dict[str, Any]:
        return self._client.health()

    def close(self) -> None:
        if self._closed:
            return
        self._run(self._client.close())
        if self._thread is not None:
            # Iterations that were left in the middle.
            self._run(self._loop.shutdown_asyncgens())
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
        call = _LoopCall(work, self._loop)
        try:
            self._loop.call_soon_threadsafe(call.begin)
            return call.result.result()
        except BaseException:
            # For example Ctrl-C. What comes next must find the request ended.
            if not call.result.done():
                call.stop()
            raise

    def _iterate(self, chunks: AsyncGenerator[T, None]) -> Generator[T, None, None]:
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
    coordinator: CoordinatorLike | str | None, base_url: str | None, api_key: str | None, max_retries: int
) -> Client:
    return Client(coordinator, base_url=base_url, api_key=api_key, max_retries=max_retries)


async def _next(chunks: AsyncGenerator[T, None]) -> T | None:
    return await anext(chunks, None)


class _LoopCall(Generic[T]):
    """A coroutine that runs on a loop for another thread, which may be interrupted at any moment.

    Attributes:
        result: What the other thread waits for.
    """

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.result: Future[T] = Future()
        self._work, self._loop = work, loop
        self._task: asyncio.Task[T] | None = None
        self._is_stopped = False
        self._ended = threading.Event()

    def begin(self) -> None:
        """Called on the loop."""
        if not self._is_stopped:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._end)

    def stop(self) -> None:
        """Cancels the coroutine, and returns when it has ended; if it has not begun, it never will."""
        self._loop.call_soon_threadsafe(self._cancel)
        self._ended.wait()
        if self._task is None:
            self._work.close()

    def _cancel(self) -> None:
        self._is_stopped = True
        if self._task is None:
            self._ended.set()
        else:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
            self.result.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())
        self._ended.set()
