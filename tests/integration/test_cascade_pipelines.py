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
        served(folder, "--config", "spoken.json", import_from=sources) as url,
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
