"""Writes down what a client says, for the client to see: once it is said, or while it is being said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from sglang_omni.generation.answer import AnswerBuilder
from sglang_omni.generation.request import GenerateRequest, SoundStream
from sglang_omni.generation.results import TranscriptionResult
from sglang_omni.serve.front.request_ids import RequestName
from sglang_omni.serve.realtime.config import Transcription, transcription_params
from sglang_omni.serve.realtime.events import error_fields, new_id
from sglang_omni.serve.realtime.items import Item
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.response import Caller
from sglang_omni.serve.realtime.sound import RATE, Samples
from sglang_omni.serve.state import AppState

_PREFIX = "conversation.item.input_audio_transcription"


class InputTranscripts:
    """The transcripts of a session's input.

    Args:
        keep: Takes each task, to end it with the session.
    """

    def __init__(
        self,
        server: AppState,
        outbox: EventQueue,
        caller: Caller,
        keep: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._server = server
        self._outbox = outbox
        self._caller = caller
        self._keep = keep
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._live: _LiveTurn | None = None

    def begin(self, item_id: str, settings: Transcription, said: Samples) -> None:
        """Write a turn's transcript while it is spoken, if the pipeline hears sound while it comes.

        Args:
            item_id: Of the item that the turn will be.
            said: Its samples so far, float32 of shape (n,) at ``RATE``.
        """
        self.drop()
        if self._server.capabilities.hears_streams:
            live = self._live = _LiveTurn(item_id)
            live.queue.put_nowait(said)
            sound = SoundStream(RATE, live.chunks())
            live.task = asyncio.create_task(self._write(live.item, item_id, sound, settings))
            self._keep(live.task)

    def add(self, samples: Samples) -> None:
        """The next samples of a turn that is spoken, if there is one."""
        if self._live is not None:
            self._live.queue.put_nowait(samples)

    def drop(self) -> None:
        """Forget the turn that is spoken: no item comes of it."""
        if (live := self._live) is not None:
            self._live = None
            assert live.task is not None
            live.task.cancel()

    def write(
        self, item: Item, settings: Transcription, *, delay: float, is_needed: Callable[[], bool]
    ) -> None:
        """Write an item's transcript, unless that is under way.

        Args:
            delay: Seconds after which it is begun, if then it is still needed.
        """
        if item.id in self._writing or self._outbox.is_closed:
            return
        live = self._live
        if live is not None and live.item_id == item.id:
            self._live = None
            live.queue.put_nowait(None)
            live.item.set_result(item)
            task = live.task
            assert task is not None
        else:
            task = asyncio.create_task(self._write_later(item, settings, delay, is_needed))
            self._keep(task)
        self._writing[item.id] = task
        task.add_done_callback(lambda _: self._writing.pop(item.id))

    def awaited(self, items: Sequence[Item]) -> list[asyncio.Task[None]]:
        """The tasks that will have written these items' transcripts."""
        return [
            self._writing[item.id]
            for item in items
            if item.id in self._writing and item.content[0].transcript is None
        ]

    async def _write_later(
        self, item: Item, settings: Transcription, delay: float, is_needed: Callable[[], bool]
    ) -> None:
        await asyncio.sleep(delay)
        if is_needed() and item.content[0].transcript is None and (clip := item.content[0].audio) is not None:
            done: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
            done.set_result(item)
            await self._write(done, item.id, clip.wav(), settings)

    async def _write(
        self, item: asyncio.Future[Item], item_id: str, sound: bytes | SoundStream, settings: Transcription
    ) -> None:
        """Transcribe an item's sound, and send it in events. A failure is sent in one, too.

        Args:
            item: Comes once all of the sound is there.
        """
        place = {"item_id": item_id, "content_index": 0}
        try:
            text = await self._transcribed(item_id, sound, settings)
            part = (await item).content[0]
        except Exception as exc:  # noqa: BLE001  # it is sent to the client
            await item
            self._outbox.put(f"{_PREFIX}.failed", **place, error=error_fields(exc))
            return
        part.transcript = text
        send_transcript(self._outbox, item.result(), 0)

    async def _transcribed(self, item_id: str, sound: bytes | SoundStream, settings: Transcription) -> str:
        server = self._server
        request = GenerateRequest(
            audio=sound if isinstance(sound, bytes) else None,
            sound=sound if isinstance(sound, SoundStream) else None,
            extra_params=transcription_params(settings),
            metadata={"task": "transcription"},
            timeout=server.timeout(None),
            session_id=self._caller.session_key,
            owner=self._caller.owner,
        )
        name = RequestName(new_id("item"), item_id, owner=self._caller.owner)
        permit = await server.admission.acquire(asyncio.Event().wait)
        assert permit is not None
        try:
            request_id = await server.running.admit(name, None)
            answer = AnswerBuilder()
            async with aclosing(server.transport.parts(request, request_id)) as parts:
                async for part in parts:
                    answer.join(part)
                    if part.text:
                        place = {"item_id": item_id, "content_index": 0}
                        self._outbox.put(f"{_PREFIX}.delta", **place, delta=part.text)
        finally:
            server.running.leave(name)
            server.admission.release(permit)
        return TranscriptionResult.of(answer.whole()).text


class _LiveTurn:
    """A turn that is being spoken: its sound so far, and its item once it has ended."""

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        # None after the last.
        self.queue: asyncio.Queue[Samples | None] = asyncio.Queue()
        self.item: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    async def chunks(self) -> AsyncGenerator[Samples, None]:
        while (samples := await self.queue.get()) is not None:
            yield samples


def send_transcript(outbox: EventQueue, item: Item, index: int) -> None:
    """Send the client the transcript of a part of an item, whose transcript is known."""
    part = item.content[index]
    seconds = 0.0 if part.audio is None else part.audio.seconds
    outbox.put(
        f"{_PREFIX}.completed",
        item_id=item.id,
        content_index=index,
        transcript=part.transcript or "",
        usage={"type": "duration", "seconds": seconds},
    )
