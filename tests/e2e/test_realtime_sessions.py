"""Realtime sessions through the router: pipecat, a caller over WebRTC, and a replica that is drained."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import soxr
from clients import clients_python
from served_process import ServedProcess
from webrtc_caller import RATE, call
from websockets.asyncio.client import ClientConnection, connect

Say = Callable[[str], bytes]
QUESTION = "What is the capital of France?"
LONG = "Tell me a long story about a dog and a cat."
SESSION = {"type": "realtime", "model": "speech-chat"}


def realtime_url(fleet: ServedProcess) -> str:
    return fleet.base_url.replace("http", "ws", 1) + "/v1/realtime"


def microphone_samples(wav: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    return (soxr.resample(samples, rate, RATE) * 32767).astype(np.int16)


async def next_of(socket: ClientConnection, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            event = json.loads(await socket.recv())
            assert event["type"] != "error", event
            if event["type"] == kind:
                return event


async def asked(socket: ClientConnection, text: str) -> str:
    """The answer to a written question."""
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await socket.send(json.dumps({"type": "response.create", "response": {"output_modalities": ["text"]}}))
    done = await next_of(socket, "response.done")
    assert done["response"]["status"] == "completed", done
    return done["response"]["output"][0]["content"][0]["text"]


async def states(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """What the router says of each replica."""
    workers = (await http.get("/workers")).json()["workers"]
    return {worker["url"]: worker for worker in workers}


async def test_a_session_stays_with_a_replica_that_is_drained(fleet: ServedProcess) -> None:
    url = realtime_url(fleet) + "?model=speech-chat"
    async with httpx.AsyncClient(base_url=fleet.base_url, timeout=120) as http:
        async with connect(url, proxy=None) as first:
            await next_of(first, "session.created")
            assert "Paris" in await asked(first, QUESTION)
            # A session counts as long as it is open.
            [busy] = [url for url, worker in (await states(http)).items() if worker["load"]]
            drain = await http.post("/workers/drain", json={"url": busy})
            assert drain.status_code == 200, drain.text
            try:
                # The drained replica goes on with its session; others go elsewhere.
                assert await asked(first, "And of Italy?")
                async with connect(url, proxy=None) as second, connect(url, proxy=None) as third:
                    for socket in (second, third):
                        await next_of(socket, "session.created")
                    loads = {url: worker["load"] for url, worker in (await states(http)).items()}
                    assert loads.pop(busy) == 1
                    assert list(loads.values()) == [2]
                await first.close()
                drained = await http.post("/workers/drain", json={"url": busy, "wait": 60})
                assert drained.json()["idle"] is True
            finally:
                (await http.post("/workers", json={"url": busy})).raise_for_status()
        scrape = (await http.get("/metrics")).text
    assert 'route="/v1/realtime"' in scrape


async def test_a_caller_interrupts_and_is_reported_how_much_it_heard(fleet: ServedProcess, say: Say) -> None:
    async with (
        httpx.AsyncClient(base_url=fleet.base_url, timeout=120) as http,
        call(http, SESSION) as (caller, answer),
    ):
        caller.microphone.say(microphone_samples(say(LONG)))
        await caller.wait("output_audio_buffer.started")
        await caller.hears(40)
        caller.microphone.say(microphone_samples(say(QUESTION)))
        await caller.wait("input_audio_buffer.speech_started", 2)
        cut = await caller.wait("conversation.item.truncated")
        silent_from = caller.moment("output_audio_buffer.cleared")
        first = caller.of("response.done")[0]["response"]
        assert cut["item_id"] == first["output"][0]["id"]
        before = [moment for moment in caller.loud() if moment < silent_from]
        # Pauses are heard too: they are not loud.
        assert cut["audio_end_ms"] >= 20 * len(before) - 200
        await caller.wait("output_audio_buffer.started", 2)
        # What was on its way is heard, and no more of the story.
        again = caller.moment("output_audio_buffer.started")
        assert len([moment for moment in caller.loud() if silent_from < moment < again]) <= 15
        await caller.wait("output_audio_buffer.stopped")
        done = caller.of("response.done")[-1]["response"]
        assert "Paris" in done["output"][0]["content"][0]["transcript"]
        caller.send("conversation.item.retrieve", item_id=cut["item_id"])
        kept = (await caller.wait("conversation.item.retrieved"))["item"]["content"][0]["transcript"]
        whole = first["output"][0]["content"][0]["transcript"]
        assert whole.startswith(kept)
        assert len(kept) < len(whole)
        # Only one replica knows the call.
        where = answer.headers["location"] + "/hangup"
        assert (await http.post(where)).status_code == 200
        assert (await http.post(where)).status_code == 404


@pytest.mark.long
def test_pipecat_holds_a_conversation_with_an_interruption(
    fleet: ServedProcess, say: Say, tmp_path: Path
) -> None:
    wavs = []
    for number, text in enumerate((QUESTION, LONG, "What is the capital of Italy?")):
        wavs.append(tmp_path / f"{number}.wav")
        wavs[-1].write_bytes(say(text))
    talk = Path(__file__).with_name("pipecat_talk.py")
    command = [clients_python(), talk, "--base-url", realtime_url(fleet), "--key", "none"]
    run = subprocess.run(
        [*command, "--model", "speech-chat", *wavs], capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-5000:]
    reported = json.loads(run.stdout)
    assert reported["errors"] == []
    assert [message["role"] for message in reported["messages"]] == ["user", "assistant"] * 4
    heard = [message["content"] for message in reported["messages"][2:]]
    assert "France" in heard[0]
    assert "Paris" in heard[1]
    assert "story" in heard[2]
    assert "Italy" in heard[4]
    names = [name for _, name in reported["log"]]
    # The last turn begins while the answer before it is played.
    last = len(names) - 1 - names[::-1].index("UserStartedSpeakingFrame")
    assert names[:last].count("BotStartedSpeakingFrame") == 3
    assert names[:last].count("BotStoppedSpeakingFrame") == 2
    assert names[last:].count("BotStoppedSpeakingFrame") == 2
