"""The preprocess stage with a small tokenizer: the payload of each task, and refusals."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tokenizers import Tokenizer, models, pre_tokenizers

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.speech_chat.preprocess import Limits, SpeechChatPreprocessor
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import OmniRequest, RequestError, StagePayload


@pytest.fixture(scope="module")
def preprocess(tmp_path_factory: pytest.TempPathFactory) -> SpeechChatPreprocessor:
    checkpoint: Path = tmp_path_factory.mktemp("checkpoint")
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "hello": 1, "user": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "config.json").write_text(json.dumps({"max_position_embeddings": 32, "vocab_size": 3}))
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{{ extra }}"
    (checkpoint / "chat_template.jinja").write_text(template)
    limits = Limits(audio_seconds=10, total_audio_seconds=15, audio_bytes=1_000_000, speech_chars=50)
    return SpeechChatPreprocessor(ChatPrompts(PromptEncoder(checkpoint)), limits)


def wav(seconds: float, rate: int = 8_000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.full(int(seconds * rate), 0.25, np.float32), rate, format="WAV")
    return buffer.getvalue()


def spoken(*lengths: float) -> dict[str, Any]:
    parts = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(seconds)).decode()}}
        for seconds in lengths
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def entry(inputs: Any, task: str | None = None, **params: Any) -> StagePayload:
    metadata: dict[str, Any] = {"model": "m"} if task is None else {"model": "m", "task": task}
    return StagePayload("r", OmniRequest(inputs, params, metadata), {"raw_inputs": inputs})


def test_a_written_chat_becomes_token_ids(preprocess: SpeechChatPreprocessor) -> None:
    out = preprocess(entry({"messages": [{"role": "user", "content": "hello hello"}]}, "chat"))

    assert out.data == {"prompt_token_ids": [2, 1, 1]}


def test_bare_text_is_a_users_message(preprocess: SpeechChatPreprocessor) -> None:
    assert preprocess(entry("hello")).data == {"prompt_token_ids": [2, 1]}


def test_template_options_are_passed_on(preprocess: SpeechChatPreprocessor) -> None:
    out = preprocess(entry("hello", chat_template_kwargs={"extra": "hello"}))

    assert out.data == {"prompt_token_ids": [2, 1, 1]}


def test_a_spoken_chat_becomes_samples(preprocess: SpeechChatPreprocessor) -> None:
    out = preprocess(entry(spoken(1.0, 2.0), "chat"))

    assert [clip.shape for clip in out.data["clips"]] == [(16_000,), (32_000,)]
    assert all(clip.dtype == np.float32 for clip in out.data["clips"])
    assert out.data["messages"] == [{"role": "user", "content": [0, 1]}]


def test_completions(preprocess: SpeechChatPreprocessor) -> None:
    assert preprocess(entry({"prompt": "hello user"}, "completion")).data == {"prompt_token_ids": [1, 2]}
    assert preprocess(entry({"prompt_token_ids": [2, 1]}, "completion")).data == {"prompt_token_ids": [2, 1]}


def test_speech_and_transcription(preprocess: SpeechChatPreprocessor) -> None:
    assert preprocess(entry({"text": "Hello."}, "speech")).data == {"text": "Hello."}
    recording = wav(1.0)
    for source in (recording, base64.b64encode(recording).decode()):
        out = preprocess(entry({"audio": source}, "transcription", language="en"))
        assert out.data == {"audio": recording}


def test_the_inputs_stay_behind_and_the_task_goes_on(preprocess: SpeechChatPreprocessor) -> None:
    payload = entry({"audio": wav(1.0)}, language="en")
    out = preprocess(payload)

    assert out.request.inputs is None
    assert out.request.params == {"language": "en"}
    assert out.request.metadata == {"model": "m", "task": "transcription"}
    assert payload.request.inputs is not None


def refusal(preprocess: SpeechChatPreprocessor, payload: StagePayload) -> RequestError:
    with pytest.raises(RequestError) as refused:
        preprocess(payload)
    return refused.value


AUDIO_PARAM = "messages[0].content[0].input_audio.data"


@pytest.mark.parametrize(
    ("inputs", "task", "params", "param", "text"),
    [
        ({"messages": []}, "chat", {}, "messages", "at least one message"),
        ("hello " * 40, "chat", {}, "messages", "41 tokens long.* holds 32 tokens"),
        ({"prompt": "hello " * 40}, "completion", {}, "prompt", "40 tokens long"),
        ({}, "completion", {}, "prompt", "is missing"),
        ({"prompt_token_ids": [3]}, "completion", {}, "prompt_token_ids", "is 3"),
        (spoken(11.0), "chat", {}, AUDIO_PARAM, "11.0 s long; the limit is 10 s"),
        (spoken(0.0), "chat", {}, AUDIO_PARAM, "0.000 s long"),
        (spoken(9.0, 9.0), "chat", {}, AUDIO_PARAM.replace("[0].input", "[1].input"), "to 18.0 s"),
        ({"text": ""}, "speech", {}, "input", "nothing that can be spoken"),
        ({"text": "?! ..."}, "speech", {}, "input", "nothing that can be spoken"),
        ({"text": None}, "speech", {}, "input", "is missing"),
        ({"text": "a" * 51}, "speech", {}, "input", "51 characters long; the limit is 50"),
        ({"text": "Hi"}, "speech", {"voice": "darth"}, "voice", "unknown voice 'darth'"),
        ({"text": "Hi"}, "speech", {"speed": 9.0}, "speed", "from 0.25 to 4"),
        ({"text": "Hi"}, "speech", {"speed": float("nan")}, "speed", "from 0.25 to 4"),
        (
            {"text": "Hi"},
            "speech",
            {"stage_params": {"speak": {"speed": "x"}}},
            "stage_params.speak.speed",
            "from 0.25",
        ),
        ({"audio": b""}, "transcription", {}, "file", "is empty"),
        ({"audio": bytes(1_000_001)}, "transcription", {}, "file", "the limit is 1.0 MB"),
        ({}, "transcription", {}, "file", "is missing"),
        ({"audio": wav(1.0)}, "transcription", {"language": "de"}, "language", "'de' is not supported"),
        ({"messages": [], "images": ["x"]}, "chat", {}, "images", "no images"),
        (5, "chat", {}, None, "got int"),
        ("x", "sing", {}, "task", "unknown task"),
        ("x", "chat", {"chat_template_kwargs": [1]}, "chat_template_kwargs", "must be an object, got list"),
        ({"text": "Hi"}, "speech", {"language": "fr"}, "language", "this model speaks English"),
        ({"text": "Hi"}, "speech", {"seed": "x"}, "seed", "must be a whole number"),
        ({"text": "Hi"}, "speech", {"temperature": 1.0}, "temperature", "of no effect"),
        ({"audio": wav(1.0)}, "transcription", {"prompt": 5}, "prompt", "must be a text"),
        ({"audio": b"x"}, "translation", {"temperature": -1}, "temperature", "from 0 to 2"),
        ({"audio": b"x"}, "transcription", {"word_timestamps": 1}, "word_timestamps", "true or false"),
        ("hello", "chat", {"talker_top_k": 3}, "talker_top_k", "of no effect"),
        ("hello", "chat", {"speed": 2.0}, "speed", "only for a spoken answer"),
        ("hello", "chat", {"max_new_tokens": 31}, "max_tokens", "is 31 .* 2 tokens long.* at most 30"),
        (spoken(1.0), "chat", {"max_new_tokens": 33}, "max_tokens", "is 33 .* holds 32"),
        ({"prompt": "hello"}, "completion", {"max_new_tokens": 32}, "max_tokens", "at most 31"),
        ("hello", "chat", {"stop_token_ids": [1, 3]}, "stop_token_ids", "3 is not in the vocabulary"),
        (
            "hello",
            "chat",
            {"stage_params": {"thinker": {"temprature": 1}}},
            "stage_params.thinker.temprature",
            "did you mean 'temperature'",
        ),
        (
            {"messages": [{"role": "user", "content": "hello", "name": "Ann"}]},
            "chat",
            {},
            "messages[0].name",
            "no place",
        ),
        ({"text": "x"}, "speech", {"stage_params": 5}, "stage_params", "must be an object, got int"),
        ({"text": "x"}, "speech", {"stage_params": {"speak": 5}}, "stage_params.speak", "must be an object"),
    ],
)
def test_refusals_name_the_field(
    preprocess: SpeechChatPreprocessor, inputs: Any, task: str, params: dict, param: str | None, text: str
) -> None:
    error = refusal(preprocess, entry(inputs, task, **params))

    assert error.param == param
    assert 400 <= error.status < 500
    with pytest.raises(RequestError, match=text):
        raise error


@pytest.mark.parametrize("modalities", [["text", "video"], "text", [1]])
def test_other_modalities_are_refused(preprocess: SpeechChatPreprocessor, modalities: Any) -> None:
    payload = entry("hello", "chat")
    payload.request.metadata["output_modalities"] = modalities

    assert refusal(preprocess, payload).param == "modalities"


def test_an_answer_that_just_fits_is_not_refused(preprocess: SpeechChatPreprocessor) -> None:
    assert preprocess(entry("hello", "chat", max_new_tokens=30)).data == {"prompt_token_ids": [2, 1]}
    preprocess(entry("hello", "chat", stop_token_ids=[2]))


def test_a_voice_is_checked_before_the_answer_is_spoken(preprocess: SpeechChatPreprocessor) -> None:
    payload = entry("hello", voice="darth")
    assert "only for a spoken answer" in refusal(preprocess, payload).message

    payload.request.metadata["output_modalities"] = ["text", "audio"]
    assert refusal(preprocess, payload).param == "voice"
