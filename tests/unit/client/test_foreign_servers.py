"""The client and the commands before a server of another maker, which refuses fields that OpenAI lacks."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from foreign_server import KEY, SOUND, app

from sglang_omni.cli import main
from sglang_omni.client import (
    ClientError,
    GenerateRequest,
    ModelInfo,
    RequestError,
    Sound,
    SyncClient,
    save,
)
from sglang_omni.supervision.ports import bind


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with bind("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(url: str) -> Iterator[SyncClient]:
    with SyncClient(url, api_key=KEY) as each:
        yield each


def chat(**fields) -> GenerateRequest:
    return GenerateRequest(model="other-1", messages=[{"role": "user", "content": "Hi"}], **fields)


def test_chats(client) -> None:
    assert client.completion(chat(max_tokens=5)).usage.total_tokens == 5
    chunks = list(client.completion_stream(chat()))
    assert [chunk.text for chunk in chunks if chunk.text] == ["Hello", " you."]
    assert (chunks[-1].finish_reason, chunks[-1].usage.completion_tokens) == ("stop", 2)


def test_spoken_chats(client) -> None:
    request = chat(output_modalities=["text", "audio"], extra_params={"voice": "ash"})
    whole = client.completion(request, audio_format="mp3")
    assert base64.b64decode(whole.audio.data).startswith((b"ID3", b"\xff"))
    (spoken,) = [c for c in client.completion_stream(request, audio_format="pcm16") if c.audio_b64]
    np.testing.assert_allclose(np.frombuffer(spoken.audio_bytes, "<i2") / 32768, SOUND, atol=1e-4)


def test_what_the_client_sees_to_itself_is_left_out(client) -> None:
    assert client.completion(chat(timeout=9), request_id="mine").text == "Hello you."
    result = client.transcribe(Sound(SOUND, 24_000).encode(), model="other-1", timeout=9, request_id="mine")
    assert (result.text, result.language, result.segments[0].end) == ("Hello.", "en", 0.2)


def test_what_only_our_servers_know_is_refused_by_name(client) -> None:
    with pytest.raises(RequestError, match="stage_params: only sgl-omni's servers know it") as caught:
        client.completion(chat(stage_params={"thinker": {"top_k": 1}}))
    assert caught.value.param == "stage_params"
    with pytest.raises(RequestError, match="unknown argument: top_k"):
        client.completion(chat(extra_params={"top_k": 1}))


def test_speech(client, tmp_path) -> None:
    request = GenerateRequest(model="other-1", prompt="Hello.", extra_params={"voice": "ash"})
    for result in (client.speech(request), client.speech_stream(request), client.speech(request)):
        save(tmp_path / "speech.wav", result)
        sound = Sound.load(tmp_path / "speech.wav")
        np.testing.assert_allclose(sound.samples, SOUND, atol=1e-4)
        assert sound.sample_rate == 24_000


def test_what_it_serves(client) -> None:
    assert client.models() == [ModelInfo("other-1", "other")]
    with pytest.raises(RequestError, match="Not Found") as caught:
        client.voices()
    assert caught.value.status == 404


def test_no_realtime_sessions(client) -> None:
    with pytest.raises((RequestError, ClientError)), client.realtime(model="other-1"):
        pass


def test_the_commands(url, tmp_path: Path, monkeypatch, capsys) -> None:
    server = ["--url", url]
    assert main(["chat", "Hi", *server]) == 1
    assert (
        "Incorrect API key provided\nGive the server's key with --api-key, or in" in capsys.readouterr().err
    )
    monkeypatch.setenv("SGLANG_OMNI_API_KEY", KEY)
    assert main(["chat", "Hi", *server]) == 0
    assert main(["models", *server]) == 0
    speech = str(tmp_path / "speech.wav")
    assert main(["say", "Hello.", "--voice", "ash", "-o", speech, *server]) == 0
    assert main(["transcribe", speech, *server]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "Hello you."
    assert said.splitlines()[-1] == "Hello."
    assert "other-1  ?      ?      ?" in said
    assert main(["models", "--json", *server]) == 0
    assert [model["id"] for model in json.loads(capsys.readouterr().out)] == ["other-1"]
