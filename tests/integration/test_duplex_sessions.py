"""Duplex sessions of ``/v1/realtime``: sound both ways at once, refusals, faults; API workers too."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from duplex_factories import KILL, LOUD, TOO_SLOW
from openai import AsyncOpenAI
from own_pipelines import ROOT, served
from waiting import PATIENCE
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

PATH = "/v1/realtime"
SOURCES = (ROOT / "python", Path(__file__).parent)
CHUNK = 1920


def config(**stage: Any) -> dict[str, Any]:
    echo = {"name": "echo", "process": "echo", "factory": "duplex_factories.echo", "terminal": True}
    modalities = {"input_modalities": ["audio"], "output_modalities": ["text", "audio"]}
    return {
        "model_path": "none",
        "serves": {"tasks": ["duplex"], **modalities},
        "stages": [{**echo, "takes_input": True, **stage}],
    }


@pytest.fixture(scope="module", params=[(), ("--api-workers", "2")], ids=["one-process", "api-workers"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo.json").write_text(json.dumps(config()))
    with served(folder, "--config", "echo.json", *request.param, import_from=SOURCES) as url:
        yield url


def opened(url: str, **options: Any) -> ClientConnection:
    return connect(url.replace("http", "ws", 1) + PATH, proxy=None, **options)


def append(level: float = 0.0, count: int = CHUNK) -> dict[str, Any]:
    sound = np.full(count, round(level * 32768), "<i2").tobytes()
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(sound).decode()}


def send(socket: ClientConnection, event: dict[str, Any]) -> None:
    socket.send(json.dumps(event))


def until(socket: ClientConnection, wanted: str | Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The events up to the first of a type, or for which ``wanted`` is true."""
    events: list[dict[str, Any]] = []
    while True:
        events.append(json.loads(socket.recv(timeout=60)))
        if events[-1]["type"] == wanted if isinstance(wanted, str) else wanted(events[-1]):
            return events


def test_sound_is_answered_while_it_comes(url: str) -> None:
    with opened(url) as socket:
        session = until(socket, "session.created")[-1]["session"]
        assert session["duplex"] is True
        assert session["audio"]["input"]["turn_detection"] is None
        send(socket, append(0.2))
        first = until(socket, "response.output_audio.delta")
        assert [event["type"] for event in first] == [
            "response.created",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_audio_transcript.delta",
            "response.output_audio.delta",
        ]
        sound = np.frombuffer(base64.b64decode(first[-1]["delta"]), "<i2")
        assert sound.tolist() == pytest.approx([round(0.1 * 32768)] * CHUNK, abs=2)
        send(socket, append(0.2))
        again = until(socket, "response.output_audio.delta")
        assert {event["response_id"] for event in again} == {first[0]["response"]["id"]}
        send(socket, {"type": "response.cancel"})
        done = until(socket, "response.done")[-1]["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        assert done["output"][0]["content"][0]["transcript"] == "1920 1920 "
        send(socket, append())
        later = until(socket, "response.output_audio.delta")
        assert later[0]["type"] == "response.created"
        assert later[0]["response"]["id"] != done["id"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "input_audio_buffer.commit"}, "no turns to commit"),
        ({"type": "input_audio_buffer.clear"}, "response.cancel"),
        ({"type": "response.create"}, "send sound"),
        ({"type": "conversation.item.create", "item": {}}, "takes only sound"),
        ({"type": "input_audio_buffer.append", "audio": "%"}, "base64"),
    ],
)
def test_what_has_no_place_is_refused_and_costs_nothing(url: str, event: Any, message: str) -> None:
    with opened(url) as socket:
        send(socket, append())
        until(socket, "response.output_audio.delta")
        send(socket, {**event, "event_id": "mine"})
        error = until(socket, "error")[-1]["error"]
        assert message in error["message"]
        assert error["event_id"] == "mine"
        send(socket, append())
        assert "response.created" not in [
            each["type"] for each in until(socket, "response.output_audio.delta")
        ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"instructions": "Be brief."}, "session.instructions"),
        ({"tools": [{"type": "function", "name": "f"}]}, "session.tools"),
        ({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}, "audio.input.turn_detection"),
        ({"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}, "audio.input.turn_detection"),
        ({"duplex": False}, "session.duplex"),
    ],
)
def test_fields_of_turns_are_refused(url: str, fields: dict[str, Any], param: str) -> None:
    with opened(url) as socket:
        send(socket, {"type": "session.update", "session": {"type": "realtime", **fields}})
        error = until(socket, "error")[-1]["error"]
        assert error["param"].endswith(param)
        send(socket, append())
        until(socket, "response.output_audio.delta")


def test_a_new_response_begins_with_a_new_sample(url: str) -> None:
    """Sound may come in pieces of any length; half a sample that is left is not put before a new stream."""

    def spoken(socket: ClientConnection) -> set[int]:
        delta = until(socket, "response.output_audio.delta")[-1]["delta"]
        return set(np.frombuffer(base64.b64decode(delta), "<i2").tolist())

    half = {"type": "input_audio_buffer.append", "audio": base64.b64encode(b"\x01").decode()}
    with opened(url) as socket:
        send(socket, append(0.1))
        assert spoken(socket) == {1638}
        send(socket, half)
        send(socket, {"type": "response.cancel"})
        until(socket, "response.done")
        send(socket, append(0.1))
        assert spoken(socket) == {1638}


def test_calls_are_refused(url: str) -> None:
    answer = httpx.post(
        f"{url}{PATH}/calls",
        content="v=0",
        headers={"content-type": "application/sdp"},
        timeout=PATIENCE,
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "session.duplex")
    assert "open a WebSocket" in error["message"]


def test_a_session_behind_is_dropped_alone(url: str) -> None:
    with opened(url) as other, opened(url) as socket:
        send(other, append())
        until(other, "response.output_audio.delta")
        send(socket, append(TOO_SLOW))
        events = until(socket, "error")
        assert events[-1]["error"]["code"] == "session_too_slow"
        assert events[-2]["response"]["status"] == "failed"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        send(other, append())
        assert until(other, "response.output_audio.delta")[0]["type"] != "response.created"


def test_a_client_that_reads_nothing_is_dropped_alone(url: str) -> None:
    with opened(url) as other, opened(url) as socket:
        until(socket, "session.created")
        for _ in range(30):
            send(socket, append(LOUD))
        # The connection holds some of it: the client reads once the others' sound has come.
        for _ in range(3):
            send(other, append())
            until(other, "response.output_audio.delta")
        assert until(socket, "error")[-1]["error"]["code"] == "client_too_slow"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        send(other, append())
        assert until(other, "response.output_audio.delta")[0]["type"] != "response.created"


def test_sound_beyond_four_seconds_is_left_out_alone(url: str) -> None:
    with opened(url) as socket:
        send(socket, append(count=24_000 * 5))
        assert "0.0 s of sound wait" in until(socket, "error")[-1]["error"]["message"]
        send(socket, append())
        until(socket, "response.output_audio.delta")


def test_a_probe_runs_the_model(url: str) -> None:
    assert httpx.get(url + "/health_generate", timeout=60).status_code == 200


def test_the_earlier_names_are_taken_and_given(url: str) -> None:
    with opened(url, additional_headers={"OpenAI-Beta": "realtime=v1"}) as socket:
        assert until(socket, "session.created")[-1]["session"]["duplex"] is True
        send(socket, append())
        until(socket, "response.audio.delta")


async def test_openais_client_holds_a_session(url: str) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    async with asyncio.timeout(PATIENCE), client.realtime.connect(model="none") as session:
        await session.input_audio_buffer.append(audio=append()["audio"])
        async for event in session:
            if event.type == "response.output_audio.delta":
                await session.response.cancel()
            elif event.type == "response.done":
                assert event.response.status == "cancelled"
                return


async def held(http: httpx.AsyncClient) -> int:
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if "stage_requests{" in line)


async def test_a_client_that_leaves_leaves_nothing(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        async with connect_async(url.replace("http", "ws", 1) + PATH, proxy=None) as socket:
            await socket.send(json.dumps(append()))
            while json.loads(await socket.recv())["type"] != "response.output_audio.delta":
                pass
            assert await held(http) >= 1
            socket.transport.abort()
        async with asyncio.timeout(PATIENCE):
            while await held(http):
                await asyncio.sleep(0.05)


def test_other_routes_say_where_to_go(url: str) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/audio/speech", {"input": "Hi", "voice": "alloy"}),
    ):
        answer = httpx.post(url + path, json={"model": "none", **body}, timeout=60)
        assert answer.status_code == 400
        assert "open a session at /v1/realtime" in answer.json()["error"]["message"]


def test_a_stage_that_dies_fails_its_sessions_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "echo.json").write_text(json.dumps(config()))
    with served(tmp_path, "--config", "echo.json", import_from=SOURCES) as url, opened(url) as socket:
        send(socket, append(KILL))
        events = until(socket, "error")
        assert events[-2]["response"]["status"] == "failed"
        assert events[-1]["error"]["message"]
