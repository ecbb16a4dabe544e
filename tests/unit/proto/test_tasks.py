"""A function's view of its requests, as the client and the server write them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from sglang_omni.client import GenerateRequest, transcription_request
from sglang_omni.generation.audio import encode_wav
from sglang_omni.generation.request import to_omni_request
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.tasks import ChatRequest, ChatTurn, SpeechRequest, TextRequest, TranscriptionRequest

TONE = np.sin(np.arange(8000, dtype=np.float32) / 8) / 2
WAV = encode_wav(TONE, 16_000)


def payload(request: GenerateRequest) -> StagePayload:
    return StagePayload("r", to_omni_request(request), None)


def chat(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return ChatRequest.of(payload(GenerateRequest(messages=list(messages), **fields)))


def test_a_chat() -> None:
    request = chat(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}, {"type": "text", "text": "four"}]},
        max_tokens=7,
        output_modalities=["text", "audio"],
        stream=False,
    )
    assert request.turns[0] == ChatTurn("system", "Be brief.")
    assert [turn.role for turn in request.turns] == ["system", "user", "assistant", "user"]
    assert (request.text, request.modalities, request.stream) == ("three\nfour", ("text", "audio"), False)
    assert (request.request_id, request.params["max_new_tokens"]) == ("r", 7)


def test_a_chat_without_a_question_ends_with_its_last_message() -> None:
    assert chat({"role": "system", "content": "Greet me."}).text == "Greet me."


def test_a_spoken_question() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}}
    request = chat({"role": "user", "content": [sound, {"type": "text", "text": "What was that?"}]})
    assert request.text == "What was that?"
    (samples,) = request.samples(16_000)
    np.testing.assert_allclose(samples, TONE, atol=1e-4)
    with pytest.raises(RequestError, match=r"messages\[0\].* is 0\.5 s long; the limit is 0\.1 s"):
        request.samples(max_seconds=0.1)


def test_a_text() -> None:
    assert TextRequest.of(payload(GenerateRequest(prompt="go on"))).prompt == "go on"
    assert TextRequest.of(payload(GenerateRequest(prompt_token_ids=[1, 2]))).prompt == [1, 2]


def test_a_text_to_speak() -> None:
    request = GenerateRequest(
        prompt="hi", metadata={"task": "speech"}, extra_params={"voice": "low", "speed": 2}
    )
    spoken = SpeechRequest.of(payload(request))
    assert (spoken.text, spoken.voice, spoken.speed, spoken.modalities) == ("hi", "low", 2.0, ("audio",))


def test_a_recording() -> None:
    request = transcription_request(WAV, language="en", prompt="names", translate=True)
    heard = TranscriptionRequest.of(payload(request))
    assert (heard.language, heard.prompt, heard.translate) == ("en", "names", True)
    assert heard.samples(8_000).shape == (4000,)


def test_another_task_is_refused_with_what_to_write() -> None:
    with pytest.raises(RequestError) as error:
        ChatRequest.of(payload(GenerateRequest(prompt="go on")))
    assert str(error.value) == (
        "this pipeline does chat, and not completion; with serves: {tasks: [chat]} in its config, the server "
        "says so by itself"
    )
    assert error.value.code == "unsupported_task"


def test_inputs_that_are_none_of_it_are_refused() -> None:
    with pytest.raises(RequestError, match="prompt: text or token ids is needed, got int"):
        TextRequest.of(payload(GenerateRequest(prompt={"prompt": 3})))
    with pytest.raises(RequestError, match="messages must be a list"):
        ChatRequest.of(payload(GenerateRequest(messages=[])))
