"""An adapter from ``engines.base.Engine``, which is stepped, to the asynchronous ``AsyncEngine``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from operator import attrgetter
from typing import Any

from sglang_omni.engines.base import Engine
from sglang_omni.engines.request import BaseRequest
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler
from sglang_omni.scheduling.threads import on_this_gpu


class SteppedEngine:
    """Steps the engine in a thread of its own, through an ``OmniScheduler``.

    Requests therefore join and leave the running batch between steps, and a failure is its request's alone.
    All methods must be called in one event loop.

    Args:
        crashed: Called in that loop with the exception that ended the engine's thread.
    """

    def __init__(self, engine: Engine[BaseRequest], crashed: Callable[[Exception], None]) -> None:
        self._crashed = crashed
        self._scheduler = OmniScheduler(engine, attrgetter("data"), _finished, _new_tokens)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._results: dict[str, asyncio.Future[BaseRequest]] = {}
        self._streams: dict[str, _TokenStream] = {}

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._scheduler.outbox = _LoopOutbox(self._loop, self._take)  # type: ignore[assignment]
        self._thread = threading.Thread(target=on_this_gpu(self._run), name="engine")
        self._thread.start()

    async def stop(self) -> None:
        """Waits for the end of the present step. Unfinished requests get no result."""
        if self._thread is not None:
            self._scheduler.stop()
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def add_request(self, request_id: str, request: BaseRequest) -> None:
        """
        Raises:
            TypeError: ``request`` is no request of an engine.
            ValueError: It has another id.
        """
        if not isinstance(request, BaseRequest):
            raise TypeError(f"request_builder must return an EngineRequest, got a {type(request).__name__}")
        if request.request_id != request_id:
            raise ValueError(
                f"request_builder returned the EngineRequest {request.request_id!r} for request "
                f"{request_id!r}: give it the payload's request_id"
            )
        self._results[request_id] = asyncio.get_running_loop().create_future()
        self._stream_of(request_id)
        payload = StagePayload(request_id, OmniRequest(None), request)
        self._scheduler.inbox.put(IncomingMessage(request_id, "new_request", payload))

    async def get_result(self, request_id: str) -> BaseRequest:
        """Waits for the finished request. Raises the engine's exception for it, if any."""
        try:
            return await self._results[request_id]
        finally:
            self._results.pop(request_id, None)
            if (stream := self._streams.get(request_id)) is not None and not stream.is_read:
                del self._streams[request_id]

    async def abort(self, request_id: str) -> None:
        self._scheduler.abort(request_id)
        if (result := self._results.pop(request_id, None)) is not None:
            result.cancel()
        self._end_stream(request_id)

    async def stream(self, request_id: str) -> AsyncIterator[int]:
        """Yields the request's tokens as they come. May be called before the request is added."""
        stream = self._stream_of(request_id)
        stream.is_read = True
        try:
            while (token := await stream.tokens.get()) is not None:
                yield token
        finally:
            self._streams.pop(request_id, None)

    def _run(self) -> None:
        try:
            self._scheduler.start()
        except Exception as exc:  # noqa: BLE001 - get_result raises it in the event loop
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._crashed, exc)

    def _take(self, message: OutgoingMessage) -> None:
        """Takes a message of the engine's thread, in the event loop."""
        request_id = message.request_id
        if message.type == "stream":
            if (stream := self._streams.get(request_id)) is not None:
                for token in message.data:
                    stream.tokens.put_nowait(token)
            return
        self._end_stream(request_id)
        result = self._results.get(request_id)
        if result is None or result.done():
            return
        if message.type == "error":
            result.set_exception(message.data)
        else:
            result.set_result(message.data)

    def _stream_of(self, request_id: str) -> _TokenStream:
        return self._streams.setdefault(request_id, _TokenStream())

    def _end_stream(self, request_id: str) -> None:
        if (stream := self._streams.get(request_id)) is not None:
            stream.tokens.put_nowait(None)


class _TokenStream:
    """A queue of tokens that ends with None."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[int | None] = asyncio.Queue()
        self.is_read = False


class _LoopOutbox:
    """Passes each message to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[OutgoingMessage], None]) -> None:
        self._loop = loop
        self._take = take

    def put(self, message: OutgoingMessage) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, message)


def _finished(payload: StagePayload, request: BaseRequest) -> Any:
    return request


def _new_tokens(
    payload: StagePayload, request: BaseRequest, tokens: list[int]
) -> list[OutgoingMessage] | None:
    return [OutgoingMessage(request.request_id, "stream", tokens)] if tokens else None
