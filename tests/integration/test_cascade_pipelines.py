"""A cascade of pipelines of this machine: one that hears, a language model, and one that speaks."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from own_pipelines import ROOT, served
from processes import is_alive
from spoken_cascade import LETTER
from tiny_checkpoints import TinyCheckpoint, with_tokenizer
from waiting import until
from websockets.sync.client import connect

from sglang_omni.generation.audio import decode_pcm
from sglang_omni.generation.samples import encode_wav


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., TinyCheckpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cascade")
    with_tokenizer(tiny_checkpoint("llama"), path / "llama", do_sample=False)
    listen = {"name": "listen", "process": "main", "factory": "spoken_cascade.load_ears", "terminal": True}
    speak = {"name": "speak", "process": "main", "factory": "spoken_cascade.load_voice", "terminal": True}
    config = {
        "config_cls": "sglang_omni.cascade.config.CascadePipelineConfig",
        "model_path": "llama",
        "asr": {
            "pipeline": {"model_path": "none", "serves": {"tasks": ["transcription"]}, "stages": [listen]}
        },
        "tts": {
            "pipeline": {
                "config_cls": "spoken_cascade.KeepingConfig",
                "model_path": "none",
                "serves": {"tasks": ["speech"], "voices": ["toy"]},
                "stages": [speak],
            }
        },
    }
    (path / "spoken.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[httpx.Client]:
    sources = (ROOT / "python", Path(__file__).parent)
    with (
        served(folder, "--config", "spoken.json", "--voices-dir", "kept", import_from=sources) as url,
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        yield client
        parts = _processes(client)
    # They end with the stages that started them.
    asyncio.run(until(lambda: not any(map(is_alive, parts))))


def _processes(api: httpx.Client) -> list[psutil.Process]:
    """The processes of the parts' own pipelines."""
    stages = api.get("/get_server_info").json()["processes"]
    return [child for stage in stages for child in psutil.Process(stage["pid"]).children(recursive=True)]


def _question(*seconds: float) -> dict[str, Any]:
    clips = [encode_wav(np.full(int(each * 16_000), 0.25, np.float32), 16_000) for each in seconds]
    parts = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(clip).decode(), "format": "wav"}}
        for clip in clips
    ]
    audio = {"voice": "toy", "format": "pcm16"}
    messages = [{"role": "user", "content": parts}]
    return {"messages": messages, "modalities": ["text", "audio"], "audio": audio, "max_tokens": 8}


def _asked(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = api.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def test_it_hears_answers_and_speaks(
    api: httpx.Client, tiny_checkpoint: Callable[..., TinyCheckpoint]
) -> None:
    """Two clips are heard; every letter of the answer is in the sound."""
    whole = _asked(api, _question(0.5, 1.1))
    assert whole["heard"] == "t5 t11"
    written = " ".join(f"t{token}" for token in tiny_checkpoint("llama").greedy([1, 5, 11, 2], 8))
    message = whole["choices"][0]["message"]
    assert message["content"] == message["audio"]["transcript"] == written
    spoken = decode_pcm(base64.b64decode(message["audio"]["data"]))
    tones = np.array([ord(letter) / 256 for letter in written], np.float32)
    np.testing.assert_array_equal(spoken, np.repeat(tones, LETTER))
    alone = api.post("/v1/audio/speech", json={"input": written, "voice": "toy", "response_format": "pcm"})
    np.testing.assert_array_equal(decode_pcm(alone.content), spoken)


def test_a_kept_voice_speaks_in_speech_chats_and_sessions(api: httpx.Client) -> None:
    wav = encode_wav(np.full(16_000, 0.5, np.float32), 16_000)
    file, form = {"audio_sample": ("a.wav", wav)}, {"name": "Anna", "consent": "cons_1"}
    made = api.post("/v1/audio/voices", files=file, data=form)
    assert made.status_code == 200, made.text
    assert api.get("/v1/audio/voices").json()["voices"] == ["Anna", "toy"]
    for voice in ("anna", {"id": made.json()["id"]}):
        whole = _asked(api, _question(0.5) | {"audio": {"voice": voice, "format": "pcm16"}})
        message = whole["choices"][0]["message"]
        spoken = decode_pcm(base64.b64decode(message["audio"]["data"]))
        tones = np.array([-0.5 * ord(letter) / 256 for letter in message["content"]], np.float32)
        np.testing.assert_allclose(spoken, np.repeat(tones, LETTER), atol=2e-5)
        said = {"input": message["content"], "voice": voice, "response_format": "pcm"}
        alone = api.post("/v1/audio/speech", json=said)
        np.testing.assert_array_equal(decode_pcm(alone.content), spoken)
    assert _spoken_in_a_session(api, "Anna").max() < 0 < _spoken_in_a_session(api, "toy").min()
    assert api.delete("/v1/audio/voices/anna").status_code == 200
    refused = api.post("/v1/chat/completions", json=_question(0.5) | {"audio": {"voice": "anna"}})
    assert "has no voice 'anna' here" in refused.json()["error"]["message"]


def _spoken_in_a_session(api: httpx.Client, voice: str) -> np.ndarray:
    """The sound of an answer, without its ends, which are resampled."""
    sound = b""
    output = {"voice": voice, "format": {"type": "audio/pcm", "rate": 24_000}}
    session = {"type": "realtime", "output_modalities": ["audio"], "audio": {"output": output}}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t5"}]}
    with connect(f"ws{str(api.base_url).removeprefix('http')}/v1/realtime") as socket:
        for event in (
            {"type": "session.update", "session": session | {"max_output_tokens": 8}},
            {"type": "conversation.item.create", "item": item},
            {"type": "response.create"},
        ):
            socket.send(json.dumps(event))
        for received in socket:
            event = json.loads(received)
            assert event["type"] != "error", event
            if event["type"] == "session.updated":
                assert event["session"]["audio"]["output"]["voice"] == voice
            if event["type"] == "response.output_audio.delta":
                sound += base64.b64decode(event["delta"])
            if event["type"] == "response.done":
                assert event["response"]["status"] in ("completed", "incomplete"), event
                return decode_pcm(sound)[LETTER:-LETTER]
    raise AssertionError("no end")


def test_many_at_once_are_answered_as_alone(api: httpx.Client) -> None:
    questions = [_question(tenths / 10) for tenths in range(3, 9)]
    alone = [_asked(api, question)["choices"] for question in questions]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda question: _asked(api, question)["choices"], questions))
    for one, other in zip(alone, together, strict=True):
        assert one[0]["message"]["content"] == other[0]["message"]["content"]
        assert one[0]["message"]["audio"]["data"] == other[0]["message"]["audio"]["data"]


def test_a_transcript_and_what_a_part_refuses(api: httpx.Client) -> None:
    wav = encode_wav(np.zeros(16_000, np.float32), 16_000)
    heard = api.post("/v1/audio/transcriptions", files={"file": ("a.wav", wav)})
    assert heard.json()["text"] == "t10"
    refused = api.post("/v1/audio/transcriptions", files={"file": ("a.wav", b"RIFFno sound")})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_audio")
    refused = api.post("/v1/audio/translations", files={"file": ("a.wav", wav)})
    assert refused.json()["error"]["code"] == "unsupported_task"
    refused = api.post("/v1/audio/speech", json={"input": "a" * 5000, "voice": "toy"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


def test_a_killed_process_of_a_part_comes_back(api: httpx.Client) -> None:
    for process in _processes(api):
        process.send_signal(signal.SIGKILL)

    def answers() -> bool:
        answer = api.post("/v1/chat/completions", json=_question(0.5))
        assert answer.status_code in (200, 500, 502, 503)
        return answer.status_code == 200

    asyncio.run(until(answers))
