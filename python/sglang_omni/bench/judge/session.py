"""One realtime session: sends what is said, and keeps what comes in a recording."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from sglang_omni.bench.judge.microphone import Microphone
from sglang_omni.bench.judge.recording import Said, SessionRecording
from sglang_omni.bench.judge.sounds import Samples
from sglang_omni.bench.outcome import CallFailed
from sglang_omni.bench.realtime_events import send_event


class JudgedSession:
    """
    Args:
        socket: An open session, whose configuration is set.
        background: See ``Microphone``.
        hands_free: True if the server finds the turns.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, *, background: Samples | None, hands_free: bool
    ) -> None:
        self.recording = SessionRecording()
        self._socket = socket
        self._microphone = Microphone(self._append, background=background, is_open=hands_free)
        self._came = asyncio.Event()
        self._failure: CallFailed | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within, the microphone sends and events are taken."""
        tasks = [asyncio.create_task(self._watched(work)) for work in (self._read(), self._microphone.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def send(self, kind: str, **fields: Any) -> None:
        await send_event(self._socket, kind, **fields)

    def say(self, clip: Samples, text: str | None) -> Said:
        """Has a clip, which begins and ends with speech, be said from now on."""
        start, end = self._microphone.play(clip)
        return Said(start, end, text)

    async def all_sent(self) -> None:
        """Waits until the server has been sent all that was said."""
        await self._microphone.all_sent()

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Waits until the recording has something; False if it has not within ``seconds``.

        Raises:
            CallFailed: The session has ended.
        """
        ends = time.perf_counter() + seconds
        while not holds():
            if self._failure is not None:
                raise self._failure
            self._came.clear()
            try:
                async with asyncio.timeout(ends - time.perf_counter()):
                    await self._came.wait()
            except TimeoutError:
                return holds()
        return True

    async def pause(self, until: float) -> None:
        """Waits until a time of ``time.perf_counter``.

        Raises:
            CallFailed: The session has ended.
        """
        await self.until(lambda: False, until - time.perf_counter())

    async def _append(self, audio: str) -> None:
        # A frame is sent fifty times a second, so it is written without an encoder: base64 needs no escapes.
        await self._socket.send_str(f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}')

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a part of the session, whose failure is the session's."""
        try:
            await work
        except (CallFailed, ConnectionError, KeyError, TypeError, ValueError) as exc:
            failure = exc if isinstance(exc, CallFailed) else CallFailed("bad event", repr(exc))
            if isinstance(exc, ConnectionError):
                failure = CallFailed("closed session", "the server closed the connection")
            self._failure = self._failure or failure
            self._came.set()

    async def _read(self) -> None:
        """
        Raises:
            CallFailed: The server has closed the session.
        """
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            drop = self.recording.take(time.perf_counter(), json.loads(message.data))
            self._came.set()
            if drop is not None and drop.item is not None:
                # The conversation keeps what was heard of the answer.
                await self.send(
                    "conversation.item.truncate",
                    item_id=drop.item,
                    content_index=0,
                    audio_end_ms=int(1000 * drop.item_seconds),
                )
        raise CallFailed("closed session", f"the server closed it ({self._socket.close_code})")
