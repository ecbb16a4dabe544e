"""Text spoken as it comes, over a WebSocket: order, cuts, frames, silence on demand, limits, refusals."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from decoded_audio import assert_sounds_like, chirp
from scripted_pipeline import ScriptedPipeline
from waiting import PATIENCE
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sglang_omni.generation.audio import decode_pcm
from sglang_omni.proto import RequestError
from sglang_omni.serve.routes import speech_stream
from sglang_omni.serve.state import Capabilities

PATH = "/v1/audio/speech/stream"


class Talk:
    """A client's end."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.sound: list[bytes] = []

    async def say(self, *texts: str, done: bool = True) -> None:
        for text in texts:
            await self.send("input.text", text=text)
        if done:
            await self.send("input.done")

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def event(self) -> dict[str, Any]:
        """The next event; sound before it is kept."""
        async with asyncio.timeout(PATIENCE):
            while isinstance(message := await self.socket.recv(), bytes):
                self.sound.append(message)
        event: dict[str, Any] = json.loads(message)
        return event

    async def until(self, kind: str) -> list[dict[str, Any]]:
        events = [await self.event()]
        while events[-1]["type"] != kind:
            events.append(await self.event())
        return events


@asynccontextmanager
async def talking(base_url: str, **config: Any) -> AsyncIterator[Talk]:
    async with connect(base_url.replace("http", "ws") + PATH, proxy=None) as socket:
        talk = Talk(socket)
        if config:
            await talk.send("session.config", **config)
        yield talk


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["sentence_text"] for event in events if event["type"] == "audio.start"]


async def test_sentences_are_spoken_in_order(base_url: str, pipeline: ScriptedPipeline) -> None:
    pipeline.speech_usage = {"prompt_tokens": 2, "completion_tokens": 3}
    async with talking(base_url, voice="default", speed=2.0, model="scripted") as talk:
        await talk.say("Hello the", "re. How", " are you? Fi", "ne")
        events = await talk.until("session.done")

    assert texts(events) == ["Hello there.", "How are you?", "Fine"]
    assert [event["type"] for event in events] == ["audio.start", "audio.done"] * 3 + ["session.done"]
    for index, (start, done) in enumerate(zip(events[:-1:2], events[1:-1:2], strict=True)):
        assert (start["utterance_index"], start["sentence_index"]) == (0, index)
        assert (start["format"], start["sample_rate"]) == ("pcm", 24_000)
        assert (done["sentence_index"], done["total_bytes"]) == (index, 960)
        assert (done["error"], done["finish_reason"]) == (False, "stop")
    assert events[-1]["total_sentences"] == 3
    assert events[-1]["usage"] == {"input_tokens": 6, "output_tokens": 9, "total_tokens": 15}
    samples = decode_pcm(b"".join(talk.sound))
    np.testing.assert_allclose(samples, np.tile(pipeline.samples, 3), atol=1e-4)
    assert len(talk.sound) == 9
    assert pipeline.last.params == {"voice": "default", "speed": 2.0, "stream": True}
    assert pipeline.last.metadata["session_id"]
    assert len({request_id for request_id, _ in pipeline.requests}) == 3


async def test_sound_comes_before_the_text_is_complete(base_url: str) -> None:
    async with talking(base_url) as talk:
        await talk.say("Well, this is the first clause, and ", done=False)
        events = await talk.until("audio.done")
        assert texts(events) == ["Well, this is the first clause,"]
        assert talk.sound
        await talk.say("this is the rest, of one sentence.")
        assert texts(await talk.until("session.done")) == ["and this is the rest, of one sentence."]


async def test_every_clause_on_demand(base_url: str) -> None:
    async with talking(base_url, split_granularity="clause") as talk:
        await talk.say("Well, this is the first clause, and this is the second one, of three.")
        assert texts(await talk.until("session.done")) == [
            "Well, this is the first clause,",
            "and this is the second one,",
            "of three.",
        ]


async def test_what_has_no_sound_is_spoken_with_what_follows(base_url: str) -> None:
    async with talking(base_url) as talk:
        await talk.say("One.\n---\nTwo. \n***\n")
        assert texts(await talk.until("session.done")) == ["One.", "--- Two."]


async def test_utterances_follow_one_another(base_url: str) -> None:
    async with talking(base_url) as talk:
        await talk.say("One. Two.")
        await talk.say("Three.")
        await talk.say()
        first, second, third = [await talk.until("session.done") for _ in range(3)]
        assert (texts(first), texts(second), texts(third)) == (["One.", "Two."], ["Three."], [])
        assert [each[-1]["utterance_index"] for each in (first, second, third)] == [0, 1, 2]
        # The configuration stays until another comes.
        await talk.send("session.config", response_format="wav")
        await talk.say("Four.")
        events = await talk.until("session.done")
        assert events[0]["format"] == "wav"


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus", "aac", "flac"])
@pytest.mark.parametrize("frames", ["binary", "base64"])
async def test_each_sentence_is_a_file(
    base_url: str, pipeline: ScriptedPipeline, kind: str, frames: str
) -> None:
    pipeline.samples = chirp()
    async with talking(base_url, response_format=kind, audio_frames=frames) as talk:
        await talk.say("One. Two.")
        for _ in range(2):
            events = await talk.until("audio.done")
            reported = [
                base64.b64decode(event["audio"]) for event in events if event["type"] == "audio.delta"
            ]
            data = b"".join(talk.sound if frames == "binary" else reported)
            talk.sound.clear()
            assert len(data) == events[-1]["total_bytes"]
            assert_sounds_like(data, pipeline.samples)


async def test_a_sentence_in_one_frame(base_url: str) -> None:
    async with talking(base_url, stream_audio=False, response_format="wav") as talk:
        await talk.say("One. Two.")
        await talk.until("session.done")
    assert [frame[:4] for frame in talk.sound] == [b"RIFF", b"RIFF"]


async def test_the_next_sentence_is_made_while_one_is_spoken(
    base_url: str, pipeline: ScriptedPipeline
) -> None:
    pipeline.hangs_after = 1  # both have given a third of their sound
    async with talking(base_url) as talk:
        await talk.say("One. Two. Three. Four.")
        async with asyncio.timeout(PATIENCE):
            while len(pipeline.running) < 2 or not all(each.waiter for each in pipeline.running.values()):
                await asyncio.sleep(0.01)
        assert [request.inputs["text"] for _, request in pipeline.requests] == ["One.", "Two."]


async def test_a_cancel_silences_at_once(base_url: str, pipeline: ScriptedPipeline) -> None:
    pipeline.hangs_after = 1
    async with talking(base_url) as talk:
        await talk.say("One. Two. Three.")
        assert (await talk.event())["type"] == "audio.start"
        await talk.say("Four, that is not complete", done=False)
        await talk.send("session.cancel")
        assert (await talk.event()) == {"type": "session.cancelled", "utterance_index": 1}
        async with asyncio.timeout(PATIENCE):
            while pipeline.running:
                await asyncio.sleep(0.01)
        assert len(pipeline.aborted) == 2
        # What follows is new.
        pipeline.hangs_after = None
        talk.sound.clear()
        await talk.say("Five.")
        events = await talk.until("session.done")
        assert texts(events) == ["Five."]
        assert {event["utterance_index"] for event in events} == {2}
        assert len(b"".join(talk.sound)) == 960


@pytest.mark.parametrize("way", ["message", "close", "drop"])
async def test_a_client_that_leaves_ends_its_requests(
    base_url: str, pipeline: ScriptedPipeline, way: str
) -> None:
    pipeline.hangs_after = 1
    async with talking(base_url) as talk:
        await talk.say("One. Two. Three.")
        await talk.event()
        if way == "message":
            await talk.send("session.close")
            with pytest.raises(ConnectionClosed) as closed:
                await talk.until("never")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1000
        elif way == "drop":
            talk.socket.transport.abort()
    async with asyncio.timeout(PATIENCE):
        while pipeline.running:
            await asyncio.sleep(0.01)
    assert len(pipeline.aborted) == len(pipeline.requests) == 2


async def test_a_sentence_without_a_sound_is_reported(base_url: str, pipeline: ScriptedPipeline) -> None:
    pipeline.samples = pipeline.samples[:0]
    async with talking(base_url) as talk:
        await talk.say("Hm.")
        error, done = await talk.until("audio.done")
    assert "before its first frame of audio" in error["error"]["message"]
    assert (done["error"], done["total_bytes"]) == (True, 0)


async def test_a_sentence_that_fails_is_skipped(base_url: str, pipeline: ScriptedPipeline) -> None:
    pipeline.error = RequestError("no sound for that", param="input", code="invalid_value")
    async with talking(base_url) as talk:
        await talk.say("One.", done=False)
        await talk.say(" Two.", done=False)
        error, done = await talk.until("audio.done")
        assert error["error"]["message"] == "no sound for that"
        assert (error["sentence_index"], done["error"], done["finish_reason"]) == (0, True, "error")
        pipeline.error = None
        await talk.say(" Three.")
        assert texts(await talk.until("session.done"))[-1] == "Three."


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("x", None, "invalid_json"),
        ("[" * 100_000, None, "invalid_json"),
        (b"x", None, "invalid_type"),
        ("[1]", "type", "invalid_value"),
        ('{"type": "input.sing"}', "type", "invalid_value"),
        ('{"type": {}}', "type", "invalid_value"),
        ('{"type": "input.text"}', "text", "missing_required_parameter"),
        ('{"type": "input.text", "text": 5}', "text", "invalid_type"),
        ('{"type": "input.done", "txt": 5}', "txt", "unknown_parameter"),
        ('{"type": "session.config", "voice": "nobody"}', "voice", "unsupported_value"),
        ('{"type": "session.config", "model": "gpt-9"}', "model", "model_not_found"),
        ('{"type": "session.config", "response_format": "ogg"}', "response_format", "invalid_value"),
        ('{"type": "session.config", "stage_params": {"x": {}}}', "stage_params.x", "unknown_parameter"),
        (json.dumps({"type": "session.config", "ref_audio": "x" * (3 << 20)}), None, "request_too_large"),
    ],
)
async def test_a_wrong_message_is_reported_and_no_more(
    base_url: str, message: str | bytes, param: str | None, code: str
) -> None:
    async with talking(base_url) as talk:
        await talk.socket.send(message)
        error = await talk.event()
        assert error["type"] == "error"
        assert (error["error"]["param"], error["error"]["code"]) == (param, code)
        await talk.say("One.")
        assert texts(await talk.until("session.done")) == ["One."]


async def test_no_configuration_within_an_utterance(base_url: str) -> None:
    async with talking(base_url) as talk:
        await talk.say("One", done=False)
        await talk.send("session.config", speed=2.0)
        assert "within an utterance" in (await talk.event())["error"]["message"]


async def test_text_that_waits_is_bounded(base_url: str, pipeline: ScriptedPipeline) -> None:
    pipeline.hangs_after = 0
    async with talking(base_url) as talk:
        await talk.say("A sentence. " * 1300, done=False)
        await talk.say("A sentence. " * 200, done=False)
        error = (await talk.event())["error"]
        assert (error["param"], error["code"]) == ("text", "input_too_long")
        await talk.send("session.cancel")
        await talk.until("session.cancelled")
        for _ in range(speech_stream._MAX_UTTERANCES + 1):
            await talk.say("x")
        assert (await talk.until("error"))[-1]["error"]["code"] == "input_too_long"


async def test_a_silent_client_is_left(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_stream, "IDLE_S", 0.2)
    async with talking(base_url) as talk:
        await talk.say("not complete", done=False)
        error = await talk.event()
        assert error["error"]["code"] == "idle_timeout"
        with pytest.raises(ConnectionClosed) as closed:
            await talk.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


async def test_a_model_that_does_not_speak(serve: Any) -> None:
    with serve(Capabilities(tasks=frozenset({"chat"})), "own") as (_, base_url):
        with pytest.raises(InvalidStatus) as refused:
            await connect(base_url.replace("http", "ws") + PATH, proxy=None)
        assert refused.value.response.status_code == 400
        assert json.loads(refused.value.response.body)["error"]["code"] == "unsupported_task"


async def test_each_sentence_takes_a_place(base_url: str, pipeline: ScriptedPipeline) -> None:
    """And gives it back, whether it was spoken or cancelled."""
    async with talking(base_url) as talk, httpx.AsyncClient(trust_env=False) as http:

        async def places() -> str:
            metrics = (await http.get(f"{base_url}/metrics")).text
            return metrics.partition("\nsglang_omni_requests_running ")[2].partition("\n")[0]

        await talk.say("One. Two. Three.")
        await talk.until("session.done")
        pipeline.hangs_after = 0
        await talk.say("Four.")
        async with asyncio.timeout(PATIENCE):
            while not pipeline.running:
                await asyncio.sleep(0.01)
        assert await places() == "1.0"
        await talk.send("session.cancel")
        await talk.until("session.cancelled")
        assert await places() == "0.0"
