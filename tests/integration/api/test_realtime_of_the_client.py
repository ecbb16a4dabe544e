"""The client's realtime sessions, asynchronous and blocking, before a scripted pipeline."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from realtime_client import Served, served
from scripted_pipeline import RATE
from waiting import PATIENCE

from sglang_omni.client import Client, ClientError, RequestError, ServerUnreachable, SyncClient
from sglang_omni.client.realtime import (
    AnswerDone,
    AnswerSound,
    AnswerText,
    Heard,
    RealtimeFault,
    RealtimeSession,
    SpeakerStarted,
    SpeakerStopped,
    SyncRealtimeSession,
)
from sglang_omni.client.realtime.events import typed_event
from sglang_omni.serve.front.access import Access

TONE = (0.5 * np.sin(np.arange(RATE // 2) / 10)).astype(np.float32)


def url(server: Served) -> str:
    return f"http://127.0.0.1:{server.port}"


async def test_a_typed_turn_and_a_spoken_one() -> None:
    async with served() as server, Client(url(server)) as client:
        async with client.realtime(instructions="Be brief.", detect_turns=False) as session:
            answer = await session.ask("Hi")
            assert (answer.text, answer.status, answer.heard) == ("Hello.", "completed", None)
            np.testing.assert_allclose(answer.samples, server.pipeline.samples, atol=1e-4)
            assert (answer.sample_rate, answer.usage.completion_tokens) == (RATE, 3)
            server.pipeline.heard = "what was asked"
            await session.send_audio(TONE, RATE)
            await session.commit()
            assert (await session.answer()).heard == "what was asked"
            messages = await server.messages()
            assert messages[0] == {"role": "system", "content": "Be brief."}
            assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
        await server.is_free()


async def test_sound_of_another_rate_is_resampled() -> None:
    async with (
        served() as server,
        Client(url(server)) as client,
        client.realtime(detect_turns=False) as session,
    ):
        for part in np.split(np.tile(TONE, 2), 4):
            await session.send_audio(part, 48_000)
        await session.commit(respond=False)
        async for event in session:
            if event.type == "conversation.item.done":
                break
        item_id = event.fields["item"]["id"]
        await session.send("conversation.item.retrieve", item_id=item_id)
        async for event in session:
            if event.type == "conversation.item.retrieved":
                break
        sound = event.fields["item"]["content"][0]["audio"]
        assert len(sound) * 3 / 4 / 2 / RATE == pytest.approx(0.5, abs=0.01)


async def test_the_events_of_an_answer_are_typed() -> None:
    async with served() as server, Client(url(server)) as client, client.realtime(speak=False) as session:
        await session.send_text("Hi")
        events = []
        async for event in session:
            events.append(event)
            if isinstance(event, AnswerDone):
                break
        assert [event.text for event in events if isinstance(event, AnswerText)] == ["Hel", "lo", "."]
        assert not any(isinstance(event, AnswerSound) for event in events)
        assert events[-1].fields["response"]["status"] == "completed"


async def test_an_interruption_cuts_the_answer_to_what_was_played() -> None:
    async with served() as server, Client(url(server)) as client:
        server.pipeline.samples = np.zeros(3 * RATE, np.float32)
        server.pipeline.hangs_after = 5
        async with client.realtime(detect_turns=False) as session, asyncio.timeout(PATIENCE):
            await session.send_text("Hi")
            async for event in session:
                if isinstance(event, AnswerSound):
                    await session.interrupt(played_s=0.25)
                    break
            answer = await session.answer()
            assert (answer.status, answer.reason) == ("cancelled", "client_cancelled")
            async for event in session:
                if event.type == "conversation.item.truncated":
                    break
            assert event.fields["audio_end_ms"] == 250
            # There is nothing left to interrupt, and no error of the server.
            await session.interrupt()
            server.pipeline.hangs_after = None
            assert (await session.ask("Go on")).text == "Hello."


async def test_more_than_has_come_was_not_played() -> None:
    async with (
        served() as server,
        Client(url(server)) as client,
        client.realtime(detect_turns=False) as session,
        asyncio.timeout(PATIENCE),
    ):
        await session.ask("Hi")
        await session.interrupt(played_s=60)
        async for event in session:
            assert not isinstance(event, RealtimeFault)
            if event.type == "conversation.item.truncated":
                assert event.fields["audio_end_ms"] == len(server.pipeline.samples) * 1000 // RATE
                return


async def test_functions() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    async with served() as server, Client(url(server)) as client:
        server.pipeline.calls = [{"index": 0, "id": "c1", "name": "add", "arguments": '{"a": 1}'}]
        server.pipeline.words = []
        async with client.realtime(speak=False, session={"tools": [tool]}) as session:
            [call] = (await session.ask("1 + 2?")).calls
            assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
            server.pipeline.calls, server.pipeline.words = [], ["3"]
            await session.return_from(call, {"sum": 3})
            assert (await session.answer()).text == "3"
            assert (await server.messages())[-1]["content"] == '{"sum": 3}'


async def test_what_is_wrong_is_reported() -> None:
    async with served() as server, Client(url(server)) as client:
        with pytest.raises(RequestError, match="voice"):
            await client.realtime(voice="unknown").__aenter__()
        async with client.realtime(detect_turns=False) as session:
            await session.commit(respond=False)
            with pytest.raises(RequestError, match="at least 100 ms"):
                await session.answer()
            server.pipeline.error = RuntimeError("stage 'thinker' fell over")
            with pytest.raises(ClientError, match="the answer failed: stage 'thinker' fell over"):
                await session.ask("Hi")
        with pytest.raises(ClientError, match="not open"):
            await client.realtime().send_text("Hi")
        await server.is_free()
    with pytest.raises(ServerUnreachable, match="no server answers at ws://"):
        await Client(url(server)).realtime().__aenter__()


async def test_keys() -> None:
    async with served(access=Access(api_keys=("known",))) as server:
        async with Client(url(server), api_key="known") as client, client.realtime(speak=False) as session:
            assert (await session.ask("Hi")).text == "Hello."
        async with Client(url(server), api_key="unknown") as client:
            with pytest.raises(RequestError) as refused:
                await client.realtime().__aenter__()
            assert refused.value.status == 401


async def test_a_session_that_the_server_ends() -> None:
    async with served() as server, Client(url(server)) as client, client.realtime(speak=False) as session:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ClientError, match="ended: 1009"):
                await session.ask("x" * (17 * 2**20))


async def test_blocking_sessions() -> None:
    def talk(base_url: str) -> None:
        with SyncClient(base_url) as client, client.realtime(detect_turns=False) as session:
            assert session.ask("Hi").text == "Hello."
            session.send_audio(TONE)
            session.commit()
            assert session.answer().text == "Hello."
            session.send_text("Hi")
            for event in session:
                if isinstance(event, AnswerDone):
                    return

    async with served() as server:
        await asyncio.to_thread(talk, url(server))
        await server.is_free()


def test_both_sessions_have_the_same_methods() -> None:
    def methods(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert methods(RealtimeSession) == methods(SyncRealtimeSession)
    assert methods(Client) == methods(SyncClient)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "input_audio_buffer.speech_started", "audio_start_ms": 5}, SpeakerStarted),
        ({"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 9}, SpeakerStopped),
        (
            {
                "type": "conversation.item.input_audio_transcription.completed",
                "transcript": "Hi",
                "item_id": "i",
            },
            Heard,
        ),
        # Of the protocol's earlier form.
        ({"type": "response.audio.delta", "delta": "AAA=", "item_id": "i"}, AnswerSound),
        ({"type": "response.text.delta", "delta": "Hi", "item_id": "i"}, AnswerText),
    ],
)
def test_classes_of_events(event, kind) -> None:
    assert type(typed_event(event)) is kind
