"""Writes down what a client said, for the client to see."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from sglang_omni.generation.answer import AnswerBuilder
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.serve.front.request_ids import RequestName
from sglang_omni.serve.realtime.config import Transcription, transcription_params
from sglang_omni.serve.realtime.events import error_fields, new_id
from sglang_omni.serve.realtime.items import Item
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.response import Caller
from sglang_omni.serve.state import AppState

_PREFIX = "conversation.item.input_audio_transcription"


async def transcribe(
    server: AppState, outbox: EventQueue, caller: Caller, item: Item, index: int, settings: Transcription
) -> None:
    """Transcribe a part of an item, and send it in events. A failure is sent in one, too."""
    place = {"item_id": item.id, "content_index": index}
    part = item.content[index]
    if part.audio is None:
        return
    request = GenerateRequest(
        audio=part.audio.wav(),
        extra_params=transcription_params(settings),
        metadata={"task": "transcription"},
        timeout=server.timeout(None),
        session_id=caller.session_key,
        owner=caller.owner,
    )
    name = RequestName(new_id("item"), item.id, owner=caller.owner)
    try:
        permit = await server.admission.acquire(asyncio.Event().wait)
        assert permit is not None
        try:
            request_id = await server.running.admit(name, None)
            answer = AnswerBuilder()
            async with aclosing(server.transport.parts(request, request_id)) as parts:
                async for heard in parts:
                    answer.join(heard)
                    if heard.text:
                        outbox.put(f"{_PREFIX}.delta", **place, delta=heard.text)
        finally:
            server.running.leave(name)
            server.admission.release(permit)
    except Exception as exc:  # noqa: BLE001  # it is sent to the client
        outbox.put(f"{_PREFIX}.failed", **place, error=error_fields(exc))
        return
    part.transcript = answer.text
    send_transcript(outbox, item, index)


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
