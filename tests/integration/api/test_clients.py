"""The same requests through a coordinator and over HTTP, asynchronous and blocking: the same answers."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import numpy as np
import pytest

from sglang_omni.client import (
    Client,
    ClientError,
    GenerateRequest,
    Message,
    RequestError,
    SamplingParams,
    SyncClient,
)
from sglang_omni.generation.audio import decode_wav


def chat(**fields) -> GenerateRequest:
    return GenerateRequest(messages=[Message("user", "Hi")], **fields)


def test_completion(client):
    result = client.completion(chat(max_tokens=3, timings=True), request_id="one")
    assert (result.request_id, result.text, result.finish_reason) == ("one", "Hello.", "length")
    assert (result.usage.total_tokens, result.usage.cached_tokens) == (10, 4)
    assert result.timings == {"thinker": {"work": 0.25, "wait": 0.5}}
    assert result.audio is None
    assert client.completion(chat()).timings is None


def test_completion_with_speech(client, pipeline):
    pipeline.heard = "what was asked"
    result = client.completion(chat(output_modalities=["text", "audio"]))
    samples, rate = decode_wav(base64.b64decode(result.audio.data))
    assert rate == 24_000
    np.testing.assert_allclose(samples, pipeline.samples, atol=1e-4)
    assert result.audio.transcript == result.text == "Hello."
    assert result.input_transcript == "what was asked"


def test_stream(client, pipeline):
    pipeline.heard = "what was asked"
    request = chat(output_modalities=["text", "audio"], timings=True)
    chunks = list(client.completion_stream(request, audio_format="pcm16"))
    assert "".join(chunk.text for chunk in chunks) == "Hello."
    pcm = b"".join(base64.b64decode(chunk.audio_b64) for chunk in chunks if chunk.audio_b64)
    np.testing.assert_allclose(np.frombuffer(pcm, "<i2") / 32768, pipeline.samples, atol=1e-4)
    assert [chunk.input_transcript for chunk in chunks if chunk.input_transcript] == ["what was asked"]
    assert chunks[-1].finish_reason == "length"
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert chunks[-1].usage.total_tokens == 10
    assert chunks[-1].timings == {"thinker": {"work": 0.25, "wait": 0.5}}


def test_generate_ends_with_the_whole_result(client, pipeline):
    chunks = list(client.generate(chat(output_modalities=["text", "audio"])))
    assert [chunk.text for chunk in chunks if chunk.text] == ["Hel", "lo", ".", "Hello."]
    np.testing.assert_allclose(chunks[-1].audio_data, pipeline.samples, atol=1e-4)
    (only,) = client.generate(chat(stream=False))
    assert (only.text, only.finish_reason) == ("Hello.", "length")


def test_prompts(client, pipeline):
    assert client.completion(GenerateRequest(prompt="Once", stream=False)).text == "Hello."
    assert pipeline.last.inputs == {"prompt": "Once"}
    client.completion(GenerateRequest(prompt_token_ids=[5, 6]))
    assert pipeline.last.inputs == {"prompt_token_ids": [5, 6]}
    assert pipeline.last.metadata["task"] == "completion"


def test_speech(client, pipeline):
    result = client.speech(GenerateRequest(prompt="Hello."), response_format="wav", speed=2.0)
    samples, _ = decode_wav(result.audio_bytes)
    np.testing.assert_allclose(samples, pipeline.samples, atol=1e-4)
    assert (result.mime_type, result.format, result.sample_rate) == ("audio/wav", "wav", 24_000)
    assert pipeline.last.inputs == {"text": "Hello."}
    assert pipeline.last.params["speed"] == 2.0
    drawn = GenerateRequest(prompt="Hello.", sampling=SamplingParams(temperature=0, top_k=5), max_tokens=7)
    for ask in (client.speech, lambda request: list(client.speech_stream(request))):
        ask(drawn)
        params = pipeline.last.params
        assert (params["temperature"], params["top_k"], params["max_new_tokens"]) == (0, 5, 7)


def test_the_timings_of_a_speech_file(client, pipeline):
    assert client.speech(GenerateRequest(prompt="Hello.", timings=True)).timings == pipeline.timings("")
    assert client.speech(GenerateRequest(prompt="Hello.")).timings is None


def test_the_tokens_of_a_stream(client, pipeline):
    pipeline.sends_tokens = True
    request = chat(extra_params={"return_token_ids": True})
    chunks = list(client.completion_stream(request))
    assert [token for chunk in chunks for token in chunk.token_ids] == [1, 2, 3]
    assert client.completion(request).token_ids == [1, 2, 3]


def test_streamed_speech(client, pipeline):
    request = GenerateRequest(prompt="Hello.", metadata={"task": "speech"}, output_modalities=["audio"])
    chunks = list(client.generate(request))
    assert len(chunks) > 1
    np.testing.assert_allclose(chunks[-1].audio_data, pipeline.samples, atol=1e-4)
    streamed = np.concatenate([chunk.audio_data for chunk in chunks[:-1]])
    np.testing.assert_allclose(streamed, pipeline.samples, atol=1e-4)


def test_transcribe(client, pipeline):
    result = client.transcribe(b"RIFF....", language="en")
    assert (result.text, result.language, result.duration) == ("Hello.", "en", 1.5)
    assert result.segments[1].end == 3661.25
    assert pipeline.last.inputs == {"audio": b"RIFF...."}
    assert pipeline.last.params["language"] == "en"
    assert result.timings is None
    assert client.transcribe(b"RIFF....", timings=True).timings == {"thinker": {"work": 0.25, "wait": 0.5}}


def test_request_error_keeps_its_fields(client, pipeline):
    pipeline.error = RequestError("not audio", param="messages[0].content[0]", status=400)
    with pytest.raises(RequestError, match="not audio") as caught:
        client.completion(chat())
    assert (caught.value.param, caught.value.status) == ("messages[0].content[0]", 400)


def test_stage_failure_keeps_its_text(client, pipeline):
    pipeline.error = RuntimeError("stage 'thinker': ZeroDivisionError: division by zero")
    with pytest.raises(RuntimeError, match="stage 'thinker': ZeroDivisionError"):
        client.completion(chat(stream=False))
    pipeline.error_after = 1
    stream = client.completion_stream(chat())
    assert next(stream).text == "Hel"
    with pytest.raises(RuntimeError, match="stage 'thinker'"):
        next(stream)


def test_timeout_aborts(client, pipeline):
    pipeline.hangs_after = 0
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        client.completion(chat(timeout=0.05), request_id="late")
    assert pipeline.was_aborted("late")


def test_leaving_a_stream_aborts(client, pipeline):
    pipeline.hangs_after = 1
    stream = client.completion_stream(chat(), request_id="left")
    assert next(stream).text == "Hel"
    stream.close()
    assert pipeline.was_aborted("left")


def test_abort_and_health(client, pipeline):
    assert not client.abort("nobody")
    assert client.health()["running"] is True
    pipeline.up = False
    assert client.health()["running"] is False


def test_no_input_is_an_error_before_anything_is_sent(client, pipeline):
    with pytest.raises(RequestError, match="exactly one of"):
        client.completion(GenerateRequest())
    with pytest.raises(RequestError, match="prompt and messages"):
        client.completion(chat(prompt="x"))
    assert pipeline.requests == []


def test_server_that_is_not_there():
    with SyncClient("http://127.0.0.1:1") as client:
        assert client.health()["running"] is False
        with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
            client.completion(chat())


def test_closed_client_says_so(base_url):
    client = SyncClient(base_url)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.completion(chat())


async def test_cancelled_call_aborts(pipeline, base_url):
    async with Client(base_url) as client:
        pipeline.hangs_after = 0
        task = asyncio.create_task(client.completion(chat(), request_id="cancelled"))
        while "cancelled" not in pipeline.running:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(pipeline.was_aborted, "cancelled")


def test_client_needs_one_target(pipeline, base_url):
    with pytest.raises(TypeError, match="either"):
        Client()
    with pytest.raises(TypeError, match="either"):
        Client(pipeline, base_url=base_url)
    with pytest.raises(TypeError, match="loop"):
        SyncClient(pipeline)


LINE_ENDS = ["one\x85two", "\u2028", "\u2029three", "\x0b\x0c\x1c", "\r\n."]


def test_text_that_holds_line_ends_of_all_kinds(client, pipeline):
    pipeline.words = LINE_ENDS
    chunks = list(client.completion_stream(chat()))
    assert "".join(chunk.text for chunk in chunks) == "".join(LINE_ENDS)


def test_events_are_one_line_for_clients_that_split_text_as_unicode_does(base_url, pipeline):
    pipeline.words = LINE_ENDS
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with httpx.stream("POST", f"{base_url}/v1/chat/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    texts = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(texts) == "".join(LINE_ENDS)
