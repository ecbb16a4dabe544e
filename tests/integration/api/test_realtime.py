"""Realtime conversations with the openai package's client, before a scripted pipeline."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from typing import Any

import numpy as np
import pytest
from realtime_client import CLIP, NO_TURNS, served
from scripted_pipeline import RATE
from waiting import PATIENCE
from websockets.asyncio.client import connect

from sglang_omni.serve.realtime import config_checks, session
from sglang_omni.serve.realtime.turns import SpeechStarted, SpeechStopped


async def test_a_written_conversation() -> None:
    async with served() as server, server.talk() as talk:
        shown = await talk.update(output_modalities=["text"], instructions="Be brief.", max_output_tokens=7)
        assert shown["output_modalities"] == ["text"]
        assert (shown["type"], shown["object"]) == ("realtime", "realtime.session")
        await talk.write("Hi")
        talk.events.clear()
        response = await talk.respond()
        assert talk.kinds() == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * 3,
            "response.output_text.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
        assert (response["status"], response["status_details"]) == ("completed", None)
        [item] = response["output"]
        assert item["content"] == [{"type": "output_text", "text": "Hello."}]
        assert response["usage"]["input_tokens"] == 7
        assert response["usage"]["input_token_details"]["cached_tokens"] == 4
        assert response["usage"]["output_tokens"] == 3
        assert len({event["event_id"] for event in talk.events}) == len(talk.events)
        await talk.write("And?")
        await talk.respond()
        assert await server.messages() == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        ]
        request = server.pipeline.last
        assert request.params["max_new_tokens"] == 7
        assert request.metadata["output_modalities"] == ["text"]
        sessions = {asked.metadata["session_id"] for _, asked in server.pipeline.requests}
        assert len(sessions) == 1


async def test_a_spoken_turn_and_what_was_heard_stands_for_it_later() -> None:
    async with served() as server, server.talk() as talk:
        server.pipeline.heard = "what I said"
        heard = {**NO_TURNS, "transcription": {"model": "whisper-1"}}
        shown = await talk.update(
            audio={"input": heard, "output": {"voice": "default", "speed": 1.2}}, temperature=0.5
        )
        assert shown["audio"]["input"]["transcription"]["model"] == server.state.served_name
        item_id = await talk.speak()
        response = await talk.respond()
        reported = [event for event in talk.events if "input_audio_transcription" in event["type"]]
        assert [(event["type"][-9:], event["item_id"], event["transcript"]) for event in reported] == [
            ("completed", item_id, "what I said")
        ]
        assert reported[0]["usage"] == {"type": "duration", "seconds": 0.5}
        deltas = [event for event in talk.events if event["type"] == "response.output_audio.delta"]
        sound = b"".join(base64.b64decode(event["delta"]) for event in deltas)
        assert np.allclose(np.frombuffer(sound, "<i2") / 32768, server.pipeline.samples, atol=1e-4)
        assert response["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hello."}]
        params = server.pipeline.last.params
        assert (params["voice"], params["speed"], params["temperature"]) == ("default", 1.2, 0.5)
        [part] = (await server.messages())[0]["content"]
        with wave.open(io.BytesIO(part["input_audio"]["data"])) as file:
            assert (file.getframerate(), file.readframes(RATE)) == (RATE, CLIP)
        await talk.speak()
        await talk.respond()
        messages = await server.messages()
        assert messages[0]["content"] == [{"type": "text", "text": "what I said"}]
        assert messages[1] == {"role": "assistant", "content": "Hello."}
        assert messages[2]["content"][0]["type"] == "input_audio"
        # No other request was made for the transcripts.
        assert [asked.metadata["task"] for _, asked in server.pipeline.requests] == ["chat", "chat"]
        await talk.send("conversation.item.retrieve", item_id=item_id)
        item = (await talk.until("conversation.item.retrieved"))["item"]
        assert base64.b64decode(item["content"][0]["audio"]) == CLIP


async def test_sound_that_no_one_wrote_down_is_the_same_in_every_prompt() -> None:
    async with served() as server, server.talk() as talk:
        for _ in range(2):
            await talk.speak()
            await talk.respond()
        messages = await server.messages()
        sounds = [message["content"][0]["input_audio"]["data"] for message in (messages[0], messages[2])]
        assert sounds[0] == sounds[1]
        [first] = (server.pipeline.requests[0][1].inputs["messages"][0])["content"]
        assert first["input_audio"]["data"] == sounds[0]


async def test_a_turn_without_an_answer_is_transcribed_by_itself() -> None:
    async with served() as server, server.talk() as talk:
        await talk.update(audio={"input": {**NO_TURNS, "transcription": {"language": "en"}}})
        item_id = await talk.speak()
        reported = await talk.until("conversation.item.input_audio_transcription.completed")
        assert (reported["item_id"], reported["transcript"]) == (item_id, "Hello.")
        assert server.pipeline.last.metadata["task"] == "transcription"
        assert server.pipeline.last.params["language"] == "en"


async def test_a_transcription_session() -> None:
    async with served() as server, server.talk(intent="transcription") as talk:
        server.pipeline.words = ["He", "llo."]
        await talk.speak()
        reported = await talk.until("conversation.item.input_audio_transcription.completed")
        assert reported["transcript"] == "Hello."
        deltas = [event["delta"] for event in talk.events if event["type"].endswith("transcription.delta")]
        assert deltas == ["He", "llo."]
        assert (await talk.refusal("response.create"))["code"] == "invalid_value"
        server.pipeline.error = RuntimeError("stage transcribe is gone")
        await talk.speak()
        failed = await talk.until("conversation.item.input_audio_transcription.failed")
        assert failed["error"]["type"] == "server_error"


async def test_a_cancelled_answer_is_cut_to_what_was_heard() -> None:
    async with served() as server, server.talk() as talk:
        server.pipeline.hangs_after = 5
        await talk.write("Hi")
        await talk.send("response.create")
        first = await talk.until("response.output_audio.delta")
        await talk.until("response.output_audio.delta")
        await talk.send("response.cancel")
        response = (await talk.until("response.done"))["response"]
        assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        [item] = response["output"]
        assert item["status"] == "incomplete"
        await server.until(lambda: response["id"] in server.pipeline.aborted)
        assert await talk.refusal("response.cancel")
        # 480 samples in three pieces: two were sent, of 13.3 ms.
        place = {"item_id": item["id"], "content_index": 0}
        assert (await talk.refusal("conversation.item.truncate", **place, audio_end_ms=15))["param"] == (
            "audio_end_ms"
        )
        await talk.send("conversation.item.truncate", **place, audio_end_ms=10)
        cut = await talk.until("conversation.item.truncated")
        assert (cut["audio_end_ms"], cut["transcript"]) == (10, "")
        await talk.send("conversation.item.retrieve", item_id=item["id"])
        [part] = (await talk.until("conversation.item.retrieved"))["item"]["content"]
        assert len(base64.b64decode(part["audio"])) == 2 * 240
        assert base64.b64decode(part["audio"]).startswith(base64.b64decode(first["delta"]))
        assert part["transcript"] == ""
        server.pipeline.hangs_after = None
        await talk.write("Go on")
        await talk.respond()
        assert [message["role"] for message in await server.messages()] == ["user", "user"]


class Detector:
    """Finds a turn in each second piece that is loud."""

    def __init__(self, settings: Any) -> None:
        self._heard = 0
        self._speaks = False

    def feed(self, samples: Any) -> list[SpeechStarted | SpeechStopped]:
        start = 1000 * self._heard // RATE
        self._heard += len(samples)
        is_loud = bool(np.abs(samples).max(initial=0) > 0.1)
        if is_loud == self._speaks:
            return []
        self._speaks = is_loud
        return [SpeechStarted(max(0, start - 100)) if is_loud else SpeechStopped(start)]


async def test_a_speaker_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (config_checks, session):
        monkeypatch.setattr(module, "create_detector", Detector)
    loud, silent = b"\x00\x40" * 4800, bytes(9600)

    async with served() as server, server.talk() as talk:
        server.pipeline.heard = "stop"

        async def send(*pieces: bytes) -> None:
            for piece in pieces:
                audio = base64.b64encode(piece).decode()
                await talk.send("input_audio_buffer.append", audio=audio)

        await talk.update(audio={"input": {"turn_detection": {"type": "server_vad"}}})
        server.pipeline.hangs_after = 4
        await send(silent, loud, silent)
        started = await talk.until("input_audio_buffer.speech_started")
        assert started["audio_start_ms"] == 100
        stopped = await talk.until("input_audio_buffer.speech_stopped")
        assert (stopped["audio_end_ms"], stopped["item_id"]) == (400, started["item_id"])
        committed = await talk.until("input_audio_buffer.committed")
        assert committed["item_id"] == started["item_id"]
        await talk.until("response.output_audio.delta")
        [part] = (await server.messages())[0]["content"]
        with wave.open(io.BytesIO(part["input_audio"]["data"])) as file:
            assert file.getnframes() == 300 * RATE // 1000
        server.pipeline.hangs_after = None
        await send(loud)
        await talk.until("input_audio_buffer.speech_started")
        talk.events.clear()
        response = (await talk.until("response.done"))["response"]
        assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert "response.output_audio.delta" not in talk.kinds()
        await send(silent)
        assert (await talk.until("response.done"))["response"]["status"] == "completed"
        roles = [message["role"] for message in await server.messages()]
        assert roles == ["user", "assistant", "user"]
        # An answer that is not to be interrupted goes on, and the turn gets none.
        turns = {"type": "server_vad", "interrupt_response": False, "create_response": False}
        await talk.update(audio={"input": {"turn_detection": turns}})
        await send(loud, silent)
        await talk.until("input_audio_buffer.committed")
        await talk.until("conversation.item.done")
        asked = len(server.pipeline.requests)
        await talk.respond()
        assert len(server.pipeline.requests) == asked + 1


async def test_functions() -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    async with served() as server, server.talk() as talk:
        await talk.update(output_modalities=["text"], tools=[tool], tool_choice="required")
        await talk.write("Is it raining?")
        server.pipeline.words = []
        server.pipeline.calls = [
            {"index": 0, "id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'},
            {"index": 1, "id": "call_2", "name": "weather", "arguments": '{"city": "Rome"}'},
        ]
        response = await talk.respond()
        shown = [(item["type"], item["call_id"], item["arguments"]) for item in response["output"]]
        assert shown == [
            ("function_call", "call_1", '{"city": "Paris"}'),
            ("function_call", "call_2", '{"city": "Rome"}'),
        ]
        done = [event for event in talk.events if event["type"].endswith("arguments.done")]
        assert [(event["name"], event["output_index"]) for event in done] == [("weather", 0), ("weather", 1)]
        deltas = [event for event in talk.events if event["type"].endswith("arguments.delta")]
        assert (
            "".join(event["delta"] for event in deltas if event["call_id"] == "call_2") == '{"city": "Rome"}'
        )
        params = server.pipeline.last.params
        assert params["tools"][0]["function"]["name"] == "weather"
        assert params["tool_choice"] == "required"
        for call in ("call_1", "call_2"):
            item = {"type": "function_call_output", "call_id": call, "output": "no"}
            await talk.send("conversation.item.create", item=item)
            await talk.until("conversation.item.done")
        server.pipeline.words, server.pipeline.calls = ["No."], []
        await talk.respond(tool_choice="none")
        messages = await server.messages()
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
        assert [call["id"] for call in messages[1]["tool_calls"]] == ["call_1", "call_2"]
        assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "no"}
        assert server.pipeline.last.params["tool_choice"] == "none"


async def test_the_earlier_form_of_the_protocol() -> None:
    async with served() as server:
        server.pipeline.heard = "what I said"
        url = f"ws://127.0.0.1:{server.port}/v1/realtime"
        headers = {"openai-beta": "realtime=v1"}
        async with connect(url, proxy=None, additional_headers=headers) as socket:
            events: list[dict[str, Any]] = []

            async def until(kind: str) -> dict[str, Any]:
                async with asyncio.timeout(PATIENCE):
                    async for text in socket:
                        events.append(json.loads(text))
                        assert events[-1]["type"] != "error", events[-1]
                        if events[-1]["type"] == kind:
                            return events[-1]
                raise AssertionError(kind)

            async def send(kind: str, **fields: Any) -> None:
                await socket.send(json.dumps({"type": kind, **fields}))

            shown = (await until("session.created"))["session"]
            assert (shown["modalities"], shown["input_audio_format"]) == (["text", "audio"], "pcm16")
            settings = {
                "modalities": ["text", "audio"],
                "voice": "default",
                "output_audio_format": "g711_ulaw",
                "input_audio_transcription": {"model": "whisper-1"},
                "turn_detection": None,
                "max_response_output_tokens": 9,
            }
            await send("session.update", session=settings)
            shown = (await until("session.updated"))["session"]
            assert shown["output_audio_format"] == "g711_ulaw"
            assert shown["max_response_output_tokens"] == 9
            assert shown["turn_detection"] is None
            await send("input_audio_buffer.append", audio=base64.b64encode(CLIP).decode())
            await send("input_audio_buffer.commit")
            await send("response.create", response={"modalities": ["audio", "text"]})
            response = (await until("response.done"))["response"]
            assert response["modalities"] == ["text", "audio"]
            assert response["output"][0]["content"] == [{"type": "audio", "transcript": "Hello."}]
            kinds = [event["type"] for event in events]
            for kind in (
                "conversation.item.created",
                "response.audio.delta",
                "response.audio_transcript.done",
            ):
                assert kind in kinds
            assert "conversation.item.done" not in kinds
            assert not [kind for kind in kinds if "output_audio" in kind]
            assert server.pipeline.last.params["max_new_tokens"] == 9
