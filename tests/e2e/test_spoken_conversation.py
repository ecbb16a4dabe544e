"""A conversation through router and replicas: text, then audio, with real models."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import soundfile
from fleet import RUN_KEY, events
from sample_media import audio_part

Say = Callable[[str], bytes]
QUESTION = "What is the capital of France?"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def chat(api: httpx.Client, messages: list[dict], **fields: object) -> dict:
    body = {"model": "speech-chat", "messages": messages, "temperature": 0, "max_tokens": 48, **fields}
    answer = api.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def transcript(api: httpx.Client, wav: bytes) -> list[str]:
    """The words that the server hears."""
    file = {"file": ("speech.wav", wav, "audio/wav")}
    answer = api.post("/v1/audio/transcriptions", files=file, data={"model": "speech-chat"})
    return words(answer.json()["text"])


def test_three_turns_of_text_then_audio(api: httpx.Client, say: Say) -> None:
    messages: list[dict] = [{"role": "user", "content": QUESTION}]
    first = chat(api, messages)["choices"][0]["message"]["content"]
    assert "Paris" in first

    messages += [
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Name one famous building there."},
    ]
    second = chat(api, messages)["choices"][0]["message"]["content"]
    assert len(words(second)) >= 2

    messages += [
        {"role": "assistant", "content": second},
        {"role": "user", "content": [audio_part(say(QUESTION))]},
    ]
    third = chat(api, messages, modalities=["text", "audio"], audio={"voice": "default", "format": "wav"})
    message = third["choices"][0]["message"]
    assert "Paris" in message["content"]

    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(message["audio"]["data"])))
    assert rate == 24_000
    assert np.abs(samples).max() > 0.05, "the answer is silence"
    heard = transcript(api, base64.b64decode(message["audio"]["data"]))
    spoken = words(message["content"])
    assert len(set(spoken) & set(heard)) >= 0.6 * len(set(spoken)), (message["content"], heard)


def test_transcription_gives_the_sentence_back(api: httpx.Client, say: Say) -> None:
    assert transcript(api, say(QUESTION)) == words(QUESTION)


@pytest.mark.parametrize("container", ["FLAC", "OGG", "MP3"])
def test_other_containers_are_heard_alike(api: httpx.Client, say: Say, container: str) -> None:
    samples, rate = soundfile.read(io.BytesIO(say(QUESTION)), dtype="float32")
    encoded = io.BytesIO()
    soundfile.write(encoded, samples, rate, format=container)
    part = audio_part(encoded.getvalue(), container.lower())
    answer = chat(api, [{"role": "user", "content": [part]}])
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_streamed_text_and_audio_are_the_whole_answer(api: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Write four short sentences about the sea."}]
    whole = chat(api, messages, max_tokens=96)["choices"][0]["message"]["content"]
    body = {
        "model": "speech-chat",
        "messages": messages,
        "temperature": 0,
        "max_tokens": 96,
        "stream_options": {"include_usage": True},
        "modalities": ["text", "audio"],
        "audio": {"voice": "default", "format": "pcm16"},
    }
    chunks = list(events(api, body))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole
    pcm = b"".join(
        base64.b64decode(delta["audio"]["data"]) for delta in deltas if (delta.get("audio") or {}).get("data")
    )
    assert len(pcm) > 24_000, "less than half a second of speech"
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    first_audio = next(i for i, delta in enumerate(deltas) if (delta.get("audio") or {}).get("data"))
    last_text = max(i for i, delta in enumerate(deltas) if delta.get("content"))
    assert first_audio < last_text, "speech began only after the last word was written"


def test_sixteen_at_once_share_decode_steps(api: httpx.Client) -> None:
    def ask(number: int) -> int:
        messages = [{"role": "user", "content": f"Count upwards from {number}."}]
        if number % 2:
            return chat(api, messages, max_tokens=24)["usage"]["completion_tokens"]
        body = {
            "model": "speech-chat",
            "messages": messages,
            "max_tokens": 24,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        return list(events(api, body))[-1]["usage"]["completion_tokens"]

    with ThreadPoolExecutor(16) as pool:
        tokens = list(pool.map(ask, range(16)))
    assert all(count > 0 for count in tokens)

    largest = []
    for worker in api.get("/workers").json()["workers"]:
        metrics = httpx.get(f"{worker['url']}/metrics", headers={"authorization": f"Bearer {RUN_KEY}"}).text
        largest += [
            float(v) for v in re.findall(r"^sglang_omni_decode_batch_size_max\S* (\S+)$", metrics, re.M)
        ]
    assert max(largest) > 1, "no decode step ran more than one request"
