"""OpenAI's own Python client, against the server."""

from __future__ import annotations

import base64
import io
import json
import wave

import numpy as np
import openai
import pytest
from decoded_audio import assert_sounds_like, chirp

from sglang_omni.generation.audio import FORMAT_MIME_TYPES, decode_pcm, encode_wav

TONE = chirp()
HELLO = [{"role": "user", "content": "Hi"}]


def frames(wav: bytes) -> np.ndarray:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_chat(api, pipeline):
    answer = api.chat.completions.create(
        model="scripted",
        messages=HELLO,
        max_completion_tokens=5,
        temperature=0.5,
        stop="END",
        extra_body={"top_k": 4, "stage_params": {"thinker": {"depth": 1}}},
    )
    assert answer.choices[0].message.content == "Hello."
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 10
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert pipeline.last.inputs == {"messages": HELLO}
    assert pipeline.last.params == {
        "max_new_tokens": 5,
        "temperature": 0.5,
        "stop": ["END"],
        "top_k": 4,
        "stage_params": {"thinker": {"depth": 1}},
        "stream": False,
    }
    assert pipeline.last.metadata == {"task": "chat", "output_modalities": ["text"], "model": "scripted"}


def test_chat_with_speech(api, pipeline):
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    pipeline.heard = "a question"
    answer = api.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": [part]}],
        modalities=["text", "audio"],
        audio={"voice": "default", "format": "wav"},
    )
    message = answer.choices[0].message
    assert message.content == message.audio.transcript == "Hello."
    assert len(frames(base64.b64decode(message.audio.data))) == 480
    assert answer.heard == "a question"
    assert pipeline.last.inputs["messages"][0]["content"] == [part]
    assert pipeline.last.params["voice"] == "default"
    assert pipeline.last.metadata["output_modalities"] == ["text", "audio"]


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"]])
def test_a_spoken_answer_is_sent_back_as_it_came(api, pipeline, modalities):
    answer = api.chat.completions.create(model="scripted", messages=HELLO, modalities=modalities)
    message = answer.choices[0].message
    for turn in (message, message.model_dump()):
        api.chat.completions.create(model="scripted", messages=[*HELLO, turn, *HELLO])
        assert pipeline.last.inputs["messages"][1] == {"role": "assistant", "content": "Hello."}


def test_streamed_chat(api, pipeline):
    stream = api.chat.completions.create(
        model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.content for c in chunks[:3]] == ["Hel", "lo", "."]
    assert chunks[3].choices[0].finish_reason == "length"
    assert chunks[4].choices == []
    assert chunks[4].usage.completion_tokens == 3
    assert all(c.usage is None for c in chunks[:4])
    assert pipeline.last.params["stream"] is True


def test_streamed_speech_equals_the_whole_answer(api, pipeline):
    fields = {
        "model": "scripted",
        "messages": HELLO,
        "modalities": ["text", "audio"],
    }
    whole = api.chat.completions.create(**fields, audio={"voice": "default", "format": "wav"})
    stream = api.chat.completions.create(**fields, audio={"voice": "default", "format": "pcm16"}, stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream]
    spoken = [delta.audio for delta in deltas if getattr(delta, "audio", None)]
    assert len({audio.id for audio in spoken}) == 1
    assert "".join(audio.transcript or "" for audio in spoken) == "Hello."
    pcm = b"".join(base64.b64decode(audio.data) for audio in spoken if audio.data)
    np.testing.assert_array_equal(
        np.frombuffer(pcm, "<i2"), frames(base64.b64decode(whole.choices[0].message.audio.data))
    )
    assert sum(audio.data is not None for audio in spoken) == 3


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus", "aac", "flac"])
def test_streamed_answers_speech_is_one_file(api, pipeline, kind):
    pipeline.samples = TONE
    stream = api.chat.completions.create(
        model="scripted",
        messages=HELLO,
        modalities=["text", "audio"],
        audio={"voice": "default", "format": kind},
        stream=True,
    )
    spoken = [delta.audio for c in stream if getattr(delta := c.choices[0].delta, "audio", None)]
    pieces = [audio.data for audio in spoken if audio.data]
    assert len(pieces) >= 3
    data = b"".join(base64.b64decode(piece) for piece in pieces)
    assert base64.b64decode("".join(pieces)) == data
    assert data.count(b"RIFF") == (kind == "wav")
    assert_sounds_like(data, TONE)


def test_completions(api, pipeline):
    assert api.completions.create(model="scripted", prompt="Once").choices[0].text == "Hello."
    assert pipeline.last.inputs == {"prompt": "Once"}
    several = api.completions.create(model="scripted", prompt=[[1, 2], [3]])
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.usage.total_tokens == 20
    assert [r.inputs for _, r in pipeline.requests[1:]] == [
        {"prompt_token_ids": [1, 2]},
        {"prompt_token_ids": [3]},
    ]
    stream = api.completions.create(model="scripted", prompt="Once", stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.text for choice in chunks) == "Hello."
    assert chunks[-1].finish_reason == "length"


@pytest.mark.parametrize(("kind", "magic"), [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS")])
def test_speech_file(api, pipeline, kind, magic):
    answer = api.audio.speech.create(
        model="scripted", voice="default", input="Hello.", response_format=kind, speed=1.5
    )
    assert answer.content.startswith(magic)
    assert pipeline.last.inputs == {"text": "Hello."}
    assert pipeline.last.params == {"voice": "default", "speed": 1.5, "stream": False}
    assert pipeline.last.metadata["task"] == "speech"


def test_mp3_speech_is_one(api):
    mp3 = api.audio.speech.create(
        model="scripted", voice="default", input="Hello.", response_format="mp3"
    ).content
    assert mp3.startswith(b"ID3") or mp3[0] == 0xFF


def test_streamed_speech_is_raw_samples(api, pipeline):
    with api.audio.speech.with_streaming_response.create(
        model="scripted",
        voice="default",
        input="Hello.",
        response_format="pcm",
        extra_body={"stream": True},
    ) as answer:
        pcm = b"".join(answer.iter_bytes())
    assert answer.headers["x-sample-rate"] == "24000"
    assert (answer.headers["x-channels"], answer.headers["x-bit-depth"]) == ("1", "16")
    np.testing.assert_allclose(np.frombuffer(pcm, "<i2") / 32768, pipeline.samples, atol=1e-4)


@pytest.mark.parametrize("kind", ["mp3", "opus", "aac", "flac", "wav"])
def test_streamed_speech_is_one_file(api, pipeline, kind):
    pipeline.samples = TONE
    with api.audio.speech.with_streaming_response.create(
        model="scripted",
        voice="default",
        input="Hello.",
        response_format=kind,
        stream_format="audio",
    ) as answer:
        data = b"".join(answer.iter_bytes())
    assert answer.headers["content-type"] == FORMAT_MIME_TYPES[kind]
    assert answer.headers["x-sample-rate"] == "24000"
    assert_sounds_like(data, TONE)


def test_speech_is_mp3_unless_asked_for_another_format(api, http, pipeline):
    pipeline.samples = TONE
    answer = api.audio.speech.create(model="scripted", voice="default", input="Hello.")
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert_sounds_like(answer.content, TONE)
    streamed = http.post("/v1/audio/speech", json={"input": "Hello.", "stream_format": "audio"})
    assert streamed.headers["content-type"] == "audio/mpeg"
    assert_sounds_like(streamed.content, TONE)
    # Clients that name no format with it were written for raw samples.
    raw = http.post("/v1/audio/speech", json={"input": "Hello.", "stream": True})
    assert raw.headers["content-type"] == "audio/pcm"
    described = [raw.headers[name] for name in ("x-sample-rate", "x-channels", "x-bit-depth")]
    assert described == ["24000", "1", "16"]
    assert_sounds_like(encode_wav(decode_pcm(raw.content), 24_000), TONE)


@pytest.mark.parametrize("kind", ["pcm", "wav", "mp3"])
def test_speech_as_events(http, pipeline, kind):
    pipeline.samples, pipeline.speech_usage = TONE, {"prompt_tokens": 5, "completion_tokens": 90}
    body = {"input": "Hello.", "stream_format": "sse", "response_format": kind}
    lines = http.post("/v1/audio/speech", json=body).text.splitlines()
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert len(deltas) >= 3
    data = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert base64.b64decode("".join(event["audio"] for event in deltas)) == data
    assert_sounds_like(data if kind != "pcm" else encode_wav(decode_pcm(data), 24_000), TONE)
    usage = {"input_tokens": 5, "output_tokens": 90, "total_tokens": 95}
    assert done == {"type": "speech.audio.done", "usage": usage, "finish_reason": "stop"}


def test_models(api):
    assert [model.id for model in api.models.list()] == ["scripted"]
    model = api.models.retrieve("scripted")
    assert model.owned_by == "sglang-omni"
    assert model.model_dump()["max_model_len"] is None
    with pytest.raises(openai.NotFoundError, match="no-such"):
        api.models.retrieve("no-such")
