"""``WS /v1/audio/transcriptions/stream``: frames, configs, refusals, clients that leave; API workers too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from own_pipelines import ROOT, served
from waiting import PATIENCE
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

PATH = "/v1/audio/transcriptions/stream"
SOURCES = (ROOT / "python", Path(__file__).parent)


def config(*, takes_input: bool) -> dict[str, Any]:
    ears = {"name": "ears", "process": "main", "factory": "input_factories.ears", "terminal": True}
    return {
        "model_path": "none",
        "serves": {"tasks": ["transcription"], "input_modalities": ["audio"]},
        "stages": [{**ears, "takes_input": takes_input}],
    }


@pytest.fixture(scope="module", params=[(), ("--api-workers", "2")], ids=["one-process", "api-workers"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ears")
    (folder / "ears.json").write_text(json.dumps(config(takes_input=True)))
    with served(folder, "--config", "ears.json", *request.param, import_from=SOURCES) as url:
        yield url


def opened(url: str) -> ClientConnection:
    return connect(url.replace("http", "ws", 1) + PATH, proxy=None)


def sent(url: str, *frames: bytes | dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream of these frames, up to its end."""
    events: list[dict[str, Any]] = []
    with opened(url) as socket:
        with suppress(ConnectionClosed):
            # The server may have ended a stream before its last frame is sent.
            for frame in frames:
                socket.send(frame if isinstance(frame, bytes) else json.dumps(frame))
        with suppress(ConnectionClosed):
            while True:
                events.append(json.loads(socket.recv(timeout=60)))
        assert socket.close_code == (1008 if events[-1]["type"] == "error" else 1000)
    return events


def pcm(count: int) -> bytes:
    return np.arange(count, dtype="<i2").tobytes()


DONE = {"type": "input.done"}


def test_text_comes_with_each_frame_and_the_whole_at_the_end(url: str) -> None:
    with opened(url) as socket:
        for count in (100, 30):
            socket.send(pcm(count))
            event = json.loads(socket.recv(timeout=60))
            assert event == {"type": "transcript.text.delta", "delta": f"+{count}"}
        socket.send(json.dumps(DONE))
        *_, done = [json.loads(message) for message in socket]
    assert done == {
        "type": "transcript.text.done",
        # The pipeline's own result, not what was streamed.
        "text": "130 samples at 16000 Hz",
        "usage": {"type": "duration", "seconds": 130 / 16_000},
    }


def test_frames_may_cut_samples(url: str) -> None:
    sound = pcm(50)
    *deltas, done = sent(url, sound[:33], sound[33:34], sound[34:37], sound[37:], DONE)
    assert done["text"] == "50 samples at 16000 Hz"
    assert "".join(delta["delta"] for delta in deltas) == "+16+1+1+32"


def test_a_config_says_what_comes(url: str) -> None:
    fields = {"sample_rate": 48_000, "language": "en", "prompt": "Omni", "segments": True}
    delta, done = sent(url, {"type": "session.config", **fields}, pcm(48), DONE)
    assert delta["segments"] == [{"id": 0, "start": 0.0, "end": 0.001, "text": "heard"}]
    assert done["text"] == "48 samples at 48000 Hz {'language': 'en', 'prompt': 'Omni'}"
    assert (done["task"], done["language"], done["duration"]) == ("transcribe", "english", 0.001)


def test_no_sound_is_a_transcript_too(url: str) -> None:
    *deltas, done = sent(url, DONE)
    assert done["text"] == "".join(delta["delta"] for delta in deltas) == "0 samples at 16000 Hz"


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([b"abc", DONE], "the sound ends within a sample"),
        ([{"type": "session.config", "sample_rate": 3}], "sample_rate"),
        ([{"type": "session.config", "model": "other"}], "other"),
        ([{"type": "session.config", "speed": 2}], "speed"),
        ([{"type": "input.more"}], "session.config, input.done"),
        ([[]], "a JSON object"),
        ([pcm(4), {"type": "session.config"}, DONE], "only as the first message"),
    ],
)
def test_what_is_wrong_is_said(url: str, frames: list[Any], message: str) -> None:
    *_, error = sent(url, *frames)
    assert message in error["error"]["message"]
    assert error["error"]["type"] == "invalid_request_error"
    assert sent(url, pcm(2), DONE)[-1]["text"] == "2 samples at 16000 Hz"


async def test_a_client_that_leaves_leaves_nothing(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def held() -> int:
            lines = (await http.get("/metrics")).text.splitlines()
            return sum(int(float(line.split()[-1])) for line in lines if "stage_requests{" in line)

        async with connect_async(url.replace("http", "ws", 1) + PATH, proxy=None) as socket:
            await socket.send(pcm(10))
            assert json.loads(await socket.recv())["delta"] == "+10"
            assert await held() == 1
            socket.transport.abort()
        async with asyncio.timeout(PATIENCE):
            while await held():
                await asyncio.sleep(0.05)


def test_a_model_of_whole_recordings_says_so(tmp_path: Path) -> None:
    (tmp_path / "ears.json").write_text(json.dumps(config(takes_input=False)))
    with served(tmp_path, "--config", "ears.json", import_from=SOURCES) as url:
        with pytest.raises(InvalidStatus) as refused:
            opened(url)
        answer = refused.value.response
        assert answer.status_code == 400
        assert b"transcribes whole recordings; send one to /v1/audio/transcriptions" in answer.body
