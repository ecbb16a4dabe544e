"""Realtime sessions over WebRTC, before a scripted pipeline. The caller is aiortc's."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from realtime_client import NO_TURNS, Served, served
from scripted_pipeline import RATE
from webrtc_caller import Caller, call

from sglang_omni.serve.front.access import Access

SDP = {"content-type": "application/sdp"}
SESSION: dict[str, Any] = {"type": "realtime", "audio": {"input": NO_TURNS}}
SILENT = {**SESSION, "output_modalities": ["text"]}


@asynccontextmanager
async def http_of(server: Served, key: str = "none") -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", headers=headers, trust_env=False
    ) as http:
        yield http


def tone(seconds: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(seconds * RATE) / RATE)).astype(np.float32)


def ask(caller: Caller, text: str = "Hi") -> None:
    content = [{"type": "input_text", "text": text}]
    caller.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    caller.send("response.create")


async def refused(http: httpx.AsyncClient, **body: Any) -> tuple[int, str | None, str]:
    answer = await http.post("/v1/realtime/calls", **body)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


async def test_an_answer_is_heard_and_reported_without_its_sound() -> None:
    async with served() as server, http_of(server) as http:
        server.pipeline.samples = tone(0.9)
        async with call(http, SESSION) as (caller, answer):
            assert answer.headers["content-type"] == "application/sdp"
            assert answer.headers["location"].startswith("/v1/realtime/calls/rtc_")
            created = await caller.wait("session.created")
            assert created["session"]["audio"]["input"]["turn_detection"] is None
            ask(caller)
            done = (await caller.wait("response.done"))["response"]
            assert done["output"][0]["content"][0]["transcript"] == "Hello."
            stopped = await caller.wait("output_audio_buffer.stopped")
            [started] = caller.of("output_audio_buffer.started")
            assert started["response_id"] == stopped["response_id"] == done["id"]
            assert caller.of("response.output_audio.delta") == []
            await caller.hears_silence()
            # Opus keeps the tone, and frames at its ends are partly silent.
            assert len(caller.loud()) == pytest.approx(45, abs=5)
            spectrum = np.abs(np.fft.rfft(np.concatenate(caller.sound)))
            heard_at = np.argmax(spectrum) * 48_000 / sum(map(len, caller.sound))
            assert heard_at == pytest.approx(440, abs=5)
        await server.is_free()


async def test_what_is_not_played_any_more_is_cut_from_the_conversation() -> None:
    async with served() as server, http_of(server) as http:
        server.pipeline.words = [f"word{number} " for number in range(60)]
        server.pipeline.samples = tone(30)
        async with call(http, SESSION) as (caller, _):
            ask(caller)
            # All of it is there long before it is played.
            item = (await caller.wait("response.done"))["response"]["output"][0]
            await caller.hears(25)
            caller.send("output_audio_buffer.clear")
            await caller.wait("output_audio_buffer.cleared")
            cut = await caller.wait("conversation.item.truncated")
            assert cut["item_id"] == item["id"]
            before = len(caller.loud())
            assert before * 20 - 200 <= cut["audio_end_ms"] <= 15_000
            ask(caller, "And?")
            await caller.wait("response.done", 2)
            said = (await server.messages())[1]
            assert said["role"] == "assistant"
            assert "word0" in said["content"]
            assert "word59" not in said["content"]
            # Browsers take no such messages.
            caller.send(
                "conversation.item.retrieve",
                item_id=caller.of("response.done")[1]["response"]["output"][0]["id"],
            )
            assert (await caller.wait("error"))["error"]["code"] == "event_too_large"
        await server.is_free()


async def test_a_microphone_is_heard() -> None:
    async with served() as server, http_of(server) as http, call(http, SESSION) as (caller, _):
        caller.microphone.say((tone(1.0).repeat(2) * 32767).astype(np.int16))
        await caller.spoke(1.5)
        caller.send("input_audio_buffer.commit")
        item = (await caller.wait("conversation.item.added"))["item"]
        caller.send("conversation.item.retrieve", item_id=item["id"])
        part = (await caller.wait("conversation.item.retrieved"))["item"]["content"][0]
        assert part["type"] == "input_audio"
        sent = caller.samples_of(part["audio"])
        spectrum = np.abs(np.fft.rfft(sent))
        assert np.argmax(spectrum) * RATE / len(sent) == pytest.approx(440, abs=5)
        assert len(sent) / RATE > 1.0


async def test_a_call_ends_with_either_side() -> None:
    async with served(access=Access(api_keys=("mine", "other"))) as server:
        async with http_of(server, "mine") as http, http_of(server, "other") as stranger:
            async with call(http, SILENT) as (caller, answer):
                where = answer.headers["location"] + "/hangup"
                assert (await stranger.post(where)).status_code == 404
                assert server.state.realtime.count == 1
                assert (await http.post(where)).status_code == 200
                await server.is_free()
                gone = await http.post(where)
                assert gone.status_code == 404
                assert gone.json()["error"]["code"] == "call_not_found"
            async with call(http, SILENT) as (caller, _):
                assert len(server.state.websockets) == 1
                await caller.wait("session.created")
            await server.is_free()
        assert len(server.state.websockets) == 0


async def test_an_offer_alone_is_enough_and_events_are_answered() -> None:
    async with served() as server, http_of(server) as http, call(http) as (caller, _):
        caller.send("session.update", session={**SILENT, "instructions": "Be brief."})
        updated = await caller.wait("session.updated")
        assert updated["session"]["instructions"] == "Be brief."
        caller.send("response.cancel", event_id="mine")
        error = (await caller.wait("error"))["error"]
        assert (error["event_id"], error["code"]) == ("mine", "response_cancel_not_active")
        ask(caller)
        await caller.wait("response.done")
        assert "".join(event["delta"] for event in caller.of("response.output_text.delta")) == "Hello."


async def test_wrong_offers_name_what_is_wrong() -> None:
    caller = Caller()
    good = await caller.offer()
    await caller.close()
    media = good[good.index("m=") :]
    without_events = good.replace(media, media[: media.index("m=application")])
    async with served() as server, http_of(server) as http:
        for text in ("", "no offer", "v=0\r\n", good[:300]):
            assert await refused(http, content=text, headers=SDP) == (400, "sdp", "invalid_sdp"), text
        assert await refused(http, content=without_events, headers=SDP) == (400, "sdp", "invalid_sdp")
        assert await refused(http, content="x" * 100_000, headers=SDP) == (413, "sdp", "request_too_large")
        assert await refused(http, json={}) == (415, "sdp", "unsupported_media_type")
        form = {"sdp": (None, good)}
        assert await refused(http, files={"session": (None, "{}")}) == (
            *(400, "sdp"),
            "missing_required_parameter",
        )
        for session, param, code in (
            ("{", "session", "invalid_json"),
            ("[]", "session", "invalid_type"),
            ('{"voices": 1}', "session.voices", "unknown_parameter"),
        ):
            found = await refused(http, files={**form, "session": (None, session)})
            assert found == (400, param, code)
        wrong = {**form, "session": (None, '{"model": "other"}')}
        server.state.model_name = "served"
        assert (await refused(http, files=wrong))[0] == 404
        server.state.realtime.limit = 0
        assert (await refused(http, content=good, headers=SDP))[0] == 429
        assert server.state.realtime.count == 0


async def test_without_aiortc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiortc", None)
    monkeypatch.delitem(sys.modules, "sglang_omni.serve.realtime.webrtc", raising=False)
    async with served() as server, http_of(server) as http:
        answer = await http.post("/v1/realtime/calls", content="v=0", headers=SDP)
        assert answer.status_code == 501
        error = answer.json()["error"]
        assert error["code"] == "webrtc_not_installed"
        assert "pip install 'sgl-omni[realtime]'" in error["message"]
