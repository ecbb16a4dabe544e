"""A spoken conversation in a realtime session, by the openai package's client, through the router."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import wave
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from served_process import ServedProcess
from waiting import PATIENCE

RATE = 24_000
SILENCE = bytes(2 * RATE)


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z']+", text.lower()))


def samples(wav: bytes) -> bytes:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return file.readframes(file.getnframes())


async def speak(connection: AsyncRealtimeConnection, wav: bytes) -> None:
    """Send a clip and a second of silence after it, in pieces as a microphone's."""
    sound = samples(wav) + SILENCE
    for start in range(0, len(sound), 1920):
        audio = base64.b64encode(sound[start : start + 1920]).decode()
        await connection.input_audio_buffer.append(audio=audio)


async def until(connection: AsyncRealtimeConnection, kind: str, seen: list[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        async for event in connection:
            assert event.type != "error", event
            seen.append(event)
            if event.type == kind:
                return event
    raise AssertionError(f"the session was closed before {kind}")


async def test_three_spoken_turns_with_an_interruption(
    fleet: ServedProcess, say: Callable[[str], bytes]
) -> None:
    texts = (
        "Tell me a long story about the sea.",
        "What is the capital of France?",
        "What is the capital of Italy?",
    )
    story, capital, italy = [await asyncio.to_thread(say, text) for text in texts]
    async with openai.AsyncOpenAI(base_url=f"{fleet.base_url}/v1", api_key="none") as client:
        connecting = client.realtime.connect(
            model="speech-chat", websocket_connection_options={"proxy": None}
        )
        async with connecting as connection:
            seen: list[Any] = []
            created = await until(connection, "session.created", seen)
            assert created.session.audio.input.turn_detection.type == "server_vad"
            audio = {"input": {"transcription": {"model": "whisper-1"}}}
            await connection.session.update(session={"type": "realtime", "audio": audio})  # type: ignore[typeddict-item]

            await speak(connection, story)
            await until(connection, "response.output_audio.delta", seen)
            await speak(connection, capital)
            started = await until(connection, "input_audio_buffer.speech_started", seen)
            seen.clear()
            response = (await until(connection, "response.done", seen)).response
            assert (response.status, response.status_details.reason) == ("cancelled", "turn_detected")
            assert "response.output_audio.delta" not in [event.type for event in seen]
            [reported] = response.output
            # All that was played is the first syllables.
            await connection.conversation.item.truncate(
                item_id=reported.id, content_index=0, audio_end_ms=400
            )
            heard = await until(connection, "conversation.item.input_audio_transcription.completed", seen)
            assert (heard.item_id, words(heard.transcript)) == (
                started.item_id,
                words("What is the capital of France?"),
            )
            seen.clear()
            response = (await until(connection, "response.done", seen)).response
            assert response.status == "completed"
            assert "paris" in words(response.output[0].content[0].transcript)
            sound = b"".join(
                base64.b64decode(event.delta) for event in seen if event.type == "response.output_audio.delta"
            )
            assert np.abs(np.frombuffer(sound, "<i2")).max() > 1000, "the answer is silence"
            assert len(sound) > RATE, "less than half a second of speech"

            await connection.conversation.item.retrieve(item_id=reported.id)
            cut = (await until(connection, "conversation.item.retrieved", seen)).item.content[0]
            assert len(base64.b64decode(cut.audio)) == 2 * round(0.4 * RATE)
            assert len(cut.transcript.split()) <= 2

            await speak(connection, italy)
            response = (await until(connection, "response.done", seen)).response
            assert "rome" in words(response.output[0].content[0].transcript)
            usage = response.usage
            assert usage.input_token_details.cached_tokens > 0.4 * usage.input_tokens


async def test_what_is_kept_of_an_interrupted_answer_ends_with_the_word_that_was_heard(
    fleet: ServedProcess, say: Callable[[str], bytes]
) -> None:
    story, question = [
        await asyncio.to_thread(say, text)
        for text in ("Tell me a long story about the sea.", "What is the capital of France?")
    ]
    async with openai.AsyncOpenAI(base_url=f"{fleet.base_url}/v1", api_key="none") as client:
        connecting = client.realtime.connect(
            model="speech-chat", websocket_connection_options={"proxy": None}
        )
        async with connecting as connection:
            seen: list[Any] = []
            output: Any = {"timestamp_granularities": ["word"]}
            await connection.session.update(
                session={"type": "realtime", "audio": {"output": output}, "temperature": 0.0}  # type: ignore[typeddict-unknown-key]
            )
            await speak(connection, story)
            told: list[dict[str, Any]] = []
            while len(told) < 12:
                event = await until(connection, "response.output_audio.words", seen)
                told += event.to_dict()["words"]
            await speak(connection, question)
            await until(connection, "response.done", seen)
            item_id = next(event for event in seen if event.type == "response.output_audio.delta").item_id
            last, following = told[9], told[10]
            # The client has played half of the pause after the tenth word.
            heard_ms = round(500 * (last["end"] + following["start"]))
            await connection.conversation.item.truncate(
                item_id=item_id, content_index=0, audio_end_ms=heard_ms
            )
            await connection.conversation.item.retrieve(item_id=item_id)
            kept = (await until(connection, "conversation.item.retrieved", seen)).item.content[0]
    assert kept.transcript.split() == [each["word"] for each in told[:10]]
    clip = io.BytesIO()
    with wave.open(clip, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(base64.b64decode(kept.audio))
    async with openai.AsyncOpenAI(base_url=f"{fleet.base_url}/v1", api_key="none") as client:
        heard = await client.audio.transcriptions.create(model="speech-chat", file=("a.wav", clip.getvalue()))
    *_, last_heard = re.findall(r"[a-z']+", heard.text.lower())
    assert last_heard == re.sub(r"[^a-z']", "", last["word"].lower()), (heard.text, kept.transcript)
