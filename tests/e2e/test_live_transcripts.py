"""What someone says is written while they speak, through the router: over a WebSocket, and in a session."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from difflib import SequenceMatcher
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import soxr
from served_process import ServedProcess
from waiting import PATIENCE
from websockets.asyncio.client import ClientConnection, connect

Say = Callable[[str], bytes]
TEXT = (
    "The quick brown fox jumps over the lazy dog. Yesterday we walked along the beach and talked about the "
    "plans for next summer. She said that the meeting would begin in the morning."
)


def at(rate: int, wav: bytes) -> bytes:
    samples, own = soundfile.read(io.BytesIO(wav), dtype="float32")
    return (soxr.resample(samples, own, rate) * 32767).astype("<i2").tobytes()


def file_of(pcm: bytes, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm, "<i2"), rate, format="WAV")
    return file.getvalue()


async def in_real_time(pcm: bytes, rate: int) -> AsyncIterator[bytes]:
    """Tenths of a second, one after the other."""
    size, began = rate // 10 * 2, asyncio.get_running_loop().time()
    for number, start in enumerate(range(0, len(pcm), size)):
        await asyncio.sleep(max(0.0, began + number / 10 - asyncio.get_running_loop().time()))
        yield pcm[start : start + size]


async def events_of(socket: ClientConnection, last: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE):
        while not events or events[-1]["type"] != last:
            events.append(json.loads(await socket.recv()))
            assert events[-1]["type"] != "error", events[-1]
    return events


@pytest.mark.asyncio
async def test_a_stream_ends_with_the_recordings_transcript(fleet: ServedProcess, say: Say) -> None:
    pcm = at(16_000, say(TEXT))
    async with httpx.AsyncClient(base_url=fleet.base_url, timeout=PATIENCE) as http:
        file = {"file": ("a.wav", file_of(pcm, 16_000))}
        whole = (await http.post("/v1/audio/transcriptions", files=file)).json()
    url = fleet.base_url.replace("http", "ws", 1) + "/v1/audio/transcriptions/stream"
    heard_while_speaking = asyncio.Event()
    async with connect(url, proxy=None) as socket:

        async def speak() -> None:
            async for piece in in_real_time(pcm, 16_000):
                await socket.send(piece)
            # A speaker of any pace is heard before the end.
            async with asyncio.timeout(PATIENCE):
                await heard_while_speaking.wait()
            await socket.send(json.dumps({"type": "input.done"}))

        async def read() -> list[dict[str, Any]]:
            first = await events_of(socket, "transcript.text.delta")
            heard_while_speaking.set()
            return first + await events_of(socket, "transcript.text.done")

        _, (*deltas, done) = await asyncio.gather(speak(), read())
    assert done["text"] == whole["text"]
    assert done["usage"] == whole["usage"]
    assert len(deltas) >= 2
    assert_alike("".join(delta["delta"] for delta in deltas), done["text"])


def assert_alike(streamed: str, whole: str) -> None:
    """A look may hear a word otherwise than the whole; none is lost or said twice."""
    one, other = ([word.lower().strip(".,!?") for word in text.split()] for text in (streamed, whole))
    assert SequenceMatcher(None, one, other, autojunk=False).ratio() >= 0.9, (streamed, whole)


@pytest.mark.asyncio
async def test_a_session_writes_a_turn_while_it_is_spoken(fleet: ServedProcess, say: Say) -> None:
    """A long turn, so that even a slow machine has looked twice before its end."""
    turn = at(24_000, say(TEXT.replace(". ", ", and ")))
    pcm = bytes(24_000) + turn + bytes(2 * 2 * 24_000)
    url = fleet.base_url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    detection = {"type": "server_vad", "silence_duration_ms": 1500}
    sound = {"transcription": {"model": "speech-chat"}, "turn_detection": detection}
    async with connect(url, proxy=None) as socket:
        update = {"type": "transcription", "audio": {"input": sound}}
        await socket.send(json.dumps({"type": "session.update", "session": update}))

        async def speak() -> None:
            async for piece in in_real_time(pcm, 24_000):
                audio = base64.b64encode(piece).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))

        prefix = "conversation.item.input_audio_transcription"
        _, events = await asyncio.gather(speak(), events_of(socket, f"{prefix}.completed"))
    kinds = [event["type"] for event in events]
    assert kinds.index(f"{prefix}.delta") < kinds.index("input_audio_buffer.speech_stopped")
    (item,) = {event["item_id"] for event in events if "item_id" in event}
    assert events[-1]["item_id"] == item
    streamed = "".join(event["delta"] for event in events if event["type"] == f"{prefix}.delta")
    transcript = events[-1]["transcript"]
    assert "quick brown fox" in transcript.lower()
    assert_alike(streamed, transcript)
