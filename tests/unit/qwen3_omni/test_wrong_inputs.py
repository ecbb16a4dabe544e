"""Every unacceptable input is a RequestError that tells what is allowed."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from sample_media import (
    audio_part,
    data_url,
    image_part,
    picture,
    png_header,
    silence,
    sound,
    text_part,
    user,
    video,
    video_part,
)

from sglang_omni.models.omni.media import MediaLimits
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.preprocess import Qwen3OmniPreprocessor
from sglang_omni.preprocessing.video import VideoLimits
from sglang_omni.proto import OmniRequest, RequestError, StagePayload


@pytest.fixture(scope="module")
def preprocessor(qwen3_omni) -> Qwen3OmniPreprocessor:
    limits = MediaLimits(audio_seconds=60.0, item_bytes=2_000_000, video=VideoLimits(seconds=30.0))
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni().path)
    return Qwen3OmniPreprocessor(checkpoint, limits=limits, context_length=1000)


def refuse(
    preprocessor: Qwen3OmniPreprocessor, inputs: Any, task: str | None = None, **params: Any
) -> RequestError:
    request = OmniRequest(inputs, params, {"task": task} if task else {})
    with pytest.raises(RequestError) as caught:
        preprocessor(StagePayload("r", request, None))
    assert 400 <= caught.value.status < 500
    return caught.value


def many(part: dict[str, Any], count: int) -> list[dict[str, Any]]:
    return [user(*[part] * count)]


IMAGE = image_part(picture(1))
# The messages, and what the error says and where it says the fault is.
WRONG: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "corrupted PNG": (
        [user("x", image_part(picture(1)[:200]))],
        "messages[0].content[1].image_url.url is a corrupted picture",
        "messages[0].content[1].image_url.url",
    ),
    "100 megapixels": (
        [user(image_part(png_header(10_000, 10_000)))],
        "has 10000 x 10000 pixels, 100.0 megapixels; the limit is 50 megapixels",
        "messages[0].content[0].image_url.url",
    ),
    "three hours": (
        [user(audio_part(silence(3 * 3600)))],
        "is 10800.0 s long; the limit is 60 s",
        "messages[0].content[0].input_audio.data",
    ),
    "50 images": (many(IMAGE, 50), "hold 50 image parts; at most 32 are accepted", "messages"),
    "33 clips": (many(audio_part(sound(1)), 33), "hold 33 audio parts; at most 32", "messages"),
    "9 videos": (many(video_part(video(1)), 9), "hold 9 video parts; at most 8", "messages"),
    "too many bytes": (
        [user(audio_part(b"\0" * 2_000_001))],
        "holds 2.0 MB or more; the limit is 2.0 MB",
        "messages[0].content[0].input_audio.data",
    ),
    "a picture as audio": (
        [user(audio_part(picture(1)))],
        "is not audio that can be decoded; send WAV",
        "messages[0].content[0].input_audio.data",
    ),
    "a sound as video": (
        [user(video_part(sound(1)))],
        "is not a video that can be decoded; send MP4",
        "messages[0].content[0].video_url.url",
    ),
    "an empty picture": (
        [user({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}})],
        "is empty",
        "messages[0].content[0].image_url.url",
    ),
    "a host that is not allowed": (
        [user({"type": "image_url", "image_url": {"url": "http://localhost/x.png"}})],
        "names the host 'localhost', from which this server does not fetch media",
        "messages[0].content[0].image_url.url",
    ),
    "a file": (
        [user({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})],
        "is a file: URL; only data:, http: and https: are accepted",
        "messages[0].content[0].image_url.url",
    ),
    "more tokens than the context": (
        [user(image_part(picture(1, 1024, 1024)))],
        "the prompt is 1034 tokens long, but the model's context holds 1000",
        "messages[0].content[0].image_url.url",
    ),
    "more tokens together": (
        many(image_part(picture(1, 512, 512)), 4),
        "tokens long, but the model's context holds 1000",
        "messages[0].content[3].image_url.url",
    ),
    "a long video": (
        [user(video_part(video(1, 62, 2, 16, 16)))],
        "is 31 s long; the limit is 30 s",
        "messages[0].content[0].video_url.url",
    ),
    "an unknown part": (
        [user({"type": "file", "file": {"file_id": "f"}})],
        "this model takes text, input_audio, audio_url, image_url and video_url parts",
        "messages[0].content[0].type",
    ),
    "no messages": ([], "messages must be a list of at least one message", "messages"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_messages(preprocessor: Qwen3OmniPreprocessor, name: str) -> None:
    messages, text, param = WRONG[name]
    error = refuse(preprocessor, {"messages": messages})
    assert text in error.message
    assert error.param == param


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"video_fps": 3}, "take 26 divided by a whole number, such as 2, 1, 0.5"),
        ({"video_fps": 27}, "take 26 divided by a whole number"),
        ({"video_fps": -1}, "video_fps must be a number from 0.001 to 1000, got -1"),
        ({"video_fps": 1e-300}, "video_fps must be a number from 0.001 to 1000, got 1e-300"),
        ({"video_fps": float("nan")}, "video_fps must be a number from 0.001 to 1000, got nan"),
        ({"video_fps": float("inf")}, "video_fps must be a number from 0.001 to 1000, got inf"),
        ({"video_fps": "fast"}, "video_fps must be a number from 0.001 to 1000, got 'fast'"),
        ({"use_audio_in_video": "yes"}, "use_audio_in_video must be true or false, got 'yes'"),
        ({"use_audio_in_video": True}, "has no sound track, which use_audio_in_video needs"),
        ({"stage_params": {"preprocess": []}}, "stage_params.preprocess must be an object"),
    ],
)
def test_wrong_parameters(preprocessor: Qwen3OmniPreprocessor, params: dict[str, Any], text: str) -> None:
    assert text in refuse(preprocessor, {"messages": [user(video_part(video(1)))]}, **params).message


def test_a_video_of_one_frame_has_no_rate(preprocessor: Qwen3OmniPreprocessor) -> None:
    error = refuse(preprocessor, {"messages": [user(video_part(video(1, 1)))]}, video_fps=1)
    assert "has 1 frame, too few for video_fps" in error.message


@pytest.mark.parametrize(
    ("inputs", "task", "text"),
    [
        ({"prompt": ""}, "completion", "prompt is empty"),
        ({}, "completion", "prompt is missing"),
        ({"prompt_token_ids": [639]}, "completion", "placeholders of media"),
        ({"prompt_token_ids": [640]}, "completion", "the vocabulary has the ids 0 to 639"),
        ({"prompt_token_ids": [1] * 1000}, "completion", "the prompt is 1000 tokens long"),
        ({"text": "Hello"}, None, "this model takes no text, only messages"),
        ({"messages": [user("x")]}, "transcription", "this model does chat and completion, not"),
        (3, "chat", "inputs must be an object or text"),
    ],
)
def test_wrong_inputs(preprocessor: Qwen3OmniPreprocessor, inputs: Any, task: str | None, text: str) -> None:
    assert text in refuse(preprocessor, inputs, task).message


def test_a_prompt_that_is_parsed_brings_no_media(preprocessor: Qwen3OmniPreprocessor) -> None:
    pad = {"prompt": "<|audio_pad|>"}
    said = "placeholders of media, which only messages can bring"
    assert said in refuse(preprocessor, pad, parse_special_tokens=True).message
    said = "parse_special_tokens must be true or false, got 1"
    assert said in refuse(preprocessor, pad, parse_special_tokens=1).message


def test_a_pipeline_for_text_takes_no_media(qwen3_omni) -> None:
    text_only = Qwen3OmniPreprocessor(Qwen3OmniCheckpoint.from_dir(qwen3_omni().path), takes=())
    error = refuse(text_only, {"messages": [user("See:", IMAGE)]})
    assert error.message == "messages[0].content[1].type is 'image_url': this model takes text parts"
    assert text_only(StagePayload("r", OmniRequest({"messages": [user("Hi")]}), None)).data["visuals"] == []


def test_nothing_is_disturbed(preprocessor: Qwen3OmniPreprocessor) -> None:
    messages = [user(IMAGE, text_part("What?"), audio_part(sound(1)))]
    before = preprocessor(StagePayload("a", OmniRequest({"messages": messages}), None)).data
    for wrong, _, _ in list(WRONG.values())[:3]:
        refuse(preprocessor, {"messages": wrong})
    after = preprocessor(StagePayload("b", OmniRequest({"messages": messages}), None)).data
    assert before["key_token_ids"] == after["key_token_ids"]


def test_audio_can_also_be_a_url_of_its_data(preprocessor: Qwen3OmniPreprocessor) -> None:
    clip = sound(1)
    parts = [
        audio_part(clip),
        {"type": "audio_url", "audio_url": {"url": data_url(clip, "audio/wav")}},
        {"type": "input_audio", "input_audio": {"data": base64.urlsafe_b64encode(clip).decode()}},
    ]
    request = OmniRequest({"messages": [user(*parts)]})
    audios = preprocessor(StagePayload("r", request, None)).data["audios"]
    assert len({audio["key"] for audio in audios}) == 1
