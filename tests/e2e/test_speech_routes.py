"""Speech and transcripts through the router, driven by OpenAI's own client and over a WebSocket."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator

import av
import httpx
import numpy as np
import openai
import pytest
import soundfile
from served_process import ServedProcess
from websockets.sync.client import connect

Say = Callable[[str], bytes]
QUESTION = "What is the capital of France?"
ANSWER = "It is Paris, where two million people live. It rains there often."


@pytest.fixture(scope="module")
def client(fleet: ServedProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.base_url}/v1", api_key="none", max_retries=0) as api:
        yield api


def seconds(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as file:
        return sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))


def heard(client: openai.OpenAI, wav: bytes) -> str:
    return client.audio.transcriptions.create(model="speech-chat", file=("a.wav", wav)).text


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus", "aac", "flac", "pcm"])
def test_a_streamed_file_is_the_whole_one(client: openai.OpenAI, kind: str) -> None:
    fields = {"model": "speech-chat", "voice": "alloy", "input": ANSWER, "response_format": kind}
    whole = client.audio.speech.create(**fields)
    assert whole.response.headers["x-finish-reason"] == "stop"
    with client.audio.speech.with_streaming_response.create(
        **fields, extra_body={"stream_format": "audio"}
    ) as answer:
        streamed = b"".join(answer.iter_bytes())
    if kind == "pcm":
        assert streamed == whole.content
    else:
        # Encoders of MP3 and AAC add silence at the ends.
        assert seconds(streamed) == pytest.approx(seconds(whole.content), abs=0.1)


@pytest.mark.asyncio
async def test_the_asynchronous_client(fleet: ServedProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{fleet.base_url}/v1", api_key="none", max_retries=0) as api:
        spoken = await api.audio.speech.create(
            model="speech-chat", voice="alloy", input=QUESTION, response_format="wav"
        )
        file = ("a.wav", spoken.content)
        answer = await api.audio.transcriptions.create(model="speech-chat", file=file)
        assert answer.text == QUESTION
        stream = await api.audio.transcriptions.create(model="speech-chat", file=file, stream=True)
        *deltas, done = [event async for event in stream]
        assert "".join(event.delta for event in deltas) == done.text == QUESTION
        assert done.usage.seconds == pytest.approx(seconds(spoken.content), abs=0.01)
        translated = await api.audio.translations.create(model="speech-chat", file=file)
        assert translated.text == QUESTION


def test_words(client: openai.OpenAI, say: Say) -> None:
    answer = client.audio.transcriptions.create(
        model="speech-chat",
        file=("a.wav", say(QUESTION)),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        prompt="Questions.",
        temperature=0.0,
        language="en",
        chunking_strategy="auto",
    )
    assert [word.word for word in answer.words] == QUESTION.split()
    (segment,) = answer.segments
    assert segment.avg_logprob < 0 < segment.compression_ratio
    assert segment.tokens


def test_a_batch(api: httpx.Client, client: openai.OpenAI) -> None:
    body = {"items": [{"input": QUESTION}, {"input": "🙂"}], "response_format": "wav"}
    first, second = api.post("/v1/audio/speech/batch", json=body).json()["results"]
    assert heard(client, base64.b64decode(first["audio_data"])) == QUESTION
    assert second["error"]["param"] == "input"


def test_text_that_comes_in_pieces(fleet: ServedProcess, client: openai.OpenAI) -> None:
    sound = bytearray()
    with connect(fleet.base_url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as socket:
        for word in ANSWER.split(" "):
            socket.send(json.dumps({"type": "input.text", "text": f"{word} "}))
        socket.send(json.dumps({"type": "input.done"}))
        while True:
            message = socket.recv(timeout=60)
            if isinstance(message, bytes):
                sound += message
            elif json.loads(message)["type"] == "session.done":
                break
    buffer = io.BytesIO()
    soundfile.write(buffer, np.frombuffer(bytes(sound), "<i2"), 24_000, format="WAV")
    text = heard(client, buffer.getvalue())
    assert "Paris" in text
    assert "rains there often" in text
