"""A cascade whose parts are a real fleet: heard, answered and spoken there, as the fleet itself does it."""

from __future__ import annotations

import base64
import io
import os
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import RUN_KEY, events
from served_process import ServedProcess, served_process
from tiny_checkpoints import TinyCheckpoint, with_tokenizer
from waiting import wait_until

DEADLINE = 60
QUESTION = "What is the capital of France?"
KEY = "sk-known-to-the-cascade-alone"


@pytest.fixture(scope="module")
def cascade(fleet: ServedProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    url = f"{fleet.base_url}/v1"
    log = tmp_path_factory.mktemp("cascade") / "log"
    env = os.environ | {"OPENAI_API_KEY": KEY}
    with served_process(log, "--asr", url, "--llm", url, "--tts", url, env=env) as server:
        yield server


@pytest.fixture(scope="module")
def composed(cascade: ServedProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cascade.base_url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def question(say: Callable[[str], bytes]) -> dict[str, Any]:
    """A spoken question, to be answered in text and speech."""
    part = {"type": "input_audio", "input_audio": {"data": _encoded(say(QUESTION)), "format": "wav"}}
    return {
        "messages": [{"role": "user", "content": [part]}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
        "max_tokens": 24,
        "temperature": 0,
    }


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _asked(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = api.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def test_a_question_is_heard_answered_and_spoken_as_the_parts_do_it(
    api: httpx.Client, composed: httpx.Client, question: dict[str, Any]
) -> None:
    own, whole = _asked(api, question), _asked(composed, question)
    assert whole["heard"] == own["heard"] == QUESTION
    message = whole["choices"][0]["message"]
    assert message["content"] == own["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == own["usage"]["completion_tokens"] > 0
    assert whole["usage"]["prompt_tokens"] == own["usage"]["prompt_tokens"]
    with wave.open(io.BytesIO(base64.b64decode(message["audio"]["data"]))) as file:
        assert file.getnframes() / file.getframerate() > 1


def test_a_stream_joined_is_the_whole(composed: httpx.Client, question: dict[str, Any]) -> None:
    whole = _asked(composed, question)
    spoken = {**question, "audio": {"voice": "alloy", "format": "pcm16"}}
    deltas = [choice["delta"] for event in events(composed, spoken) for choice in event["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    sound = b"".join(base64.b64decode(delta.get("audio", {}).get("data", "")) for delta in deltas)
    with wave.open(io.BytesIO(base64.b64decode(whole["choices"][0]["message"]["audio"]["data"]))) as file:
        assert sound == file.readframes(file.getnframes())


def test_speech_and_transcripts_are_the_parts_own(
    api: httpx.Client, composed: httpx.Client, say: Callable[[str], bytes]
) -> None:
    body = {"input": QUESTION, "voice": "alloy", "response_format": "wav"}
    assert composed.post("/v1/audio/speech", json=body).content == say(QUESTION)
    for route in ("transcriptions", "translations"):
        files = {"file": ("q.wav", say(QUESTION))}
        heard = composed.post(f"/v1/audio/{route}", files=files, data={"response_format": "verbose_json"})
        assert heard.json()["text"] == QUESTION
        assert heard.json()["segments"]


def test_many_at_once_are_answered_as_alone(composed: httpx.Client) -> None:
    def ask(number: int) -> str:
        body = {"messages": [{"role": "user", "content": f"Count to {number}."}], "max_tokens": 12}
        return str(_asked(composed, body)["choices"][0]["message"]["content"])

    alone = [ask(number) for number in range(3)]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, [*range(3)] * 4))
    assert together == alone * 4


def test_what_the_language_model_refuses_is_reported_in_its_words(composed: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1_000_000}
    answer = composed.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "max_tokens"


def test_a_caller_who_leaves_ends_the_request_at_the_part(
    fleet: ServedProcess, composed: httpx.Client
) -> None:
    workers = httpx.get(f"{fleet.base_url}/workers", timeout=DEADLINE).json()["workers"]

    def count(state: str) -> int:
        headers = {"authorization": f"Bearer {RUN_KEY}"}
        loads = [httpx.get(f"{worker['url']}/get_load", headers=headers).json() for worker in workers]
        return sum(load[state] for load in loads)

    aborted = count("aborted")
    body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 4000}
    with composed.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        next(line for line in answer.iter_lines() if '"content"' in line)
    wait_until(lambda: count("aborted") == aborted + 1, "the answer goes on at the part")


def test_the_key_is_reported_to_the_servers_alone(cascade: ServedProcess, composed: httpx.Client) -> None:
    reported = [composed.get(path).text for path in ("/get_server_info", "/v1/models", "/metrics")]
    assert "/v1" in reported[0]  # the parts' URLs
    assert KEY not in "".join([*reported, cascade.text])


def test_a_language_model_of_this_machine_between_parts_elsewhere(
    fleet: ServedProcess,
    tiny_checkpoint: Callable[..., TinyCheckpoint],
    tmp_path: Path,
    question: dict[str, Any],
) -> None:
    checkpoint = tiny_checkpoint("llama")
    path = with_tokenizer(checkpoint, tmp_path / "llama", do_sample=False)
    flags = ("--llm", str(path), "--asr", fleet.base_url, "--tts", fleet.base_url, "--tts-voice", "nova")
    with (
        served_process(tmp_path / "log", *flags) as server,
        httpx.Client(base_url=server.base_url, timeout=120) as api,
    ):
        chat = {"messages": [{"role": "user", "content": "t5 t7"}], "max_tokens": 6}
        expected = " ".join(f"t{token}" for token in checkpoint.greedy([1, 5, 7, 2], 6))
        assert _asked(api, chat)["choices"][0]["message"]["content"] == expected
        heard = _asked(api, {**question, "max_tokens": 6})
        assert heard["heard"] == QUESTION
        assert heard["choices"][0]["message"]["audio"]["data"]
        assert api.post("/v1/completions", json={"prompt": "t5", "max_tokens": 2}).status_code == 200
