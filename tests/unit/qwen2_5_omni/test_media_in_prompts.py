"""Prompts, media and positions of Qwen2.5-Omni are those of transformers' processor and model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from qwen2_5_omni_oracle import OmniOracle
from sample_media import audio_part, image_part, picture, silence, sound, user, video, video_part

from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.media import VIDEO_FPS
from sglang_omni.models.qwen2_5_omni.positions import Qwen25PositionRules
from sglang_omni.models.qwen2_5_omni.preprocess import SPEECH_PROMPT, Qwen25Preprocessor
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [{"role": "user", "content": "Where is the blue bird? 你好"}],
    "images of many sizes": [
        user(*(image_part(picture(i, 37 * i, 300 - 40 * i)) for i in range(1, 4)), "Compare them.")
    ],
    "clips of many lengths": [
        user(*(audio_part(sound(i, seconds)) for i, seconds in enumerate((0.31, 2.75, 0.07, 4.13))))
    ],
    "three turns": [
        {"role": "system", "content": "You are brief."},
        user(image_part(picture(5)), "What is this?"),
        {"role": "assistant", "content": "A picture."},
        user("And this?", audio_part(sound(5, 0.4)), video_part(video(5, 4))),
        {"role": "assistant", "content": "A tone."},
        {"role": "user", "content": "Thank you."},
    ],
}
WITH_SOUND: dict[str, list[dict[str, Any]]] = {
    "chunks take turns": [user(video_part(video(2, 10, 2, with_sound=True)), "What happens?")],
    "everything": [
        user(audio_part(sound(1)), image_part(picture(1)), video_part(video(4, 6, with_sound=True))),
        {"role": "assistant", "content": "I see."},
        user(video_part(video(5, 4, 2, with_sound=True)), image_part(picture(2)), audio_part(sound(6, 0.5))),
    ],
}


@pytest.fixture(scope="module")
def oracle(qwen2_5_omni: Any) -> OmniOracle:
    return qwen2_5_omni()


@pytest.fixture(scope="module")
def preprocess(oracle: OmniOracle) -> Any:
    processor = Qwen25Preprocessor(Qwen25OmniCheckpoint.from_dir(oracle.path), video_fps=VIDEO_FPS)

    def call(messages: list[dict[str, Any]], spoken: bool = False, **params: Any) -> dict[str, Any]:
        metadata = {"output_modalities": ["text", "audio"]} if spoken else {}
        request = OmniRequest({"messages": messages}, params, metadata)
        return processor(StagePayload("r", request, None)).data

    return call


@pytest.mark.parametrize("name", [*CONVERSATIONS, *WITH_SOUND])
def test_tokens_media_and_positions(oracle: OmniOracle, preprocess: Any, name: str) -> None:
    messages = {**CONVERSATIONS, **WITH_SOUND}[name]
    with_sound = name in WITH_SOUND
    prompt = preprocess(messages, use_audio_in_video=with_sound)
    expected = oracle.inputs(messages, use_audio_in_video=with_sound, padding=0)
    assert prompt["prompt_token_ids"] == expected["input_ids"][0].tolist()
    for kind, tensor, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        items = [item for item in prompt["visuals"] if item["kind"] == kind]
        assert [item["grid_thw"] for item in items] == [tuple(g) for g in expected.get(grid, [])]
        if items:
            assert torch.equal(torch.cat([item["pixel_values"] for item in items]), expected[tensor])
    mask = expected.get("feature_attention_mask")
    for item, features, valid in zip(
        prompt["audios"],
        expected.get("input_features", ()),
        () if mask is None else mask.bool(),
        strict=True,
    ):
        torch.testing.assert_close(item["input_features"], features[:, valid], rtol=0, atol=1e-6)
    check_positions(oracle, prompt, expected, with_sound)


def check_positions(oracle: OmniOracle, prompt: dict[str, Any], expected: Any, with_sound: bool) -> None:
    """Of the thinker, and of the talker, which here counts twice as many a second."""
    checkpoint = Qwen25OmniCheckpoint.from_dir(oracle.path)
    rules = Qwen25PositionRules.from_config(checkpoint.thinker_config, checkpoint.tokens)
    own = rules.for_talker(checkpoint.config["talker_config"])
    talker = own.rope_positions(prompt["prompt_token_ids"], prompt["media"])
    mask, seconds = expected.get("feature_attention_mask"), expected.get("video_second_per_grid")
    for part, found, delta in (
        (oracle.model.thinker, prompt["positions"], prompt["position_delta"]),
        (oracle.model.talker, *((None, 0) if talker is None else talker)),
    ):
        positions, right = part.get_rope_index(
            expected["input_ids"],
            expected.get("image_grid_thw"),
            expected.get("video_grid_thw"),
            expected["attention_mask"],
            with_sound,
            None if mask is None else mask.sum(-1),
            None if seconds is None else torch.as_tensor(seconds),
        )
        length = len(prompt["prompt_token_ids"])
        assert torch.equal(torch.arange(length).expand(3, -1) if found is None else found, positions[:, 0])
        assert delta == right.item()


@pytest.mark.parametrize("fps", [1.0, 3.0])
def test_frame_rates_between_positions(oracle: OmniOracle, preprocess: Any, fps: float) -> None:
    messages = [user(video_part(video(7, 24, 6)), "What happens?")]
    prompt = preprocess(messages, video_fps=fps)
    metadata = [{"total_num_frames": 24, "fps": 6.0}]
    expected = oracle.inputs(messages, padding=0, fps=fps, do_sample_frames=True, video_metadata=metadata)
    assert prompt["prompt_token_ids"] == expected["input_ids"][0].tolist()
    check_positions(oracle, prompt, expected, with_sound=False)


def test_two_frames_a_second_are_taken_unless_the_request_tells(preprocess: Any) -> None:
    messages = [user(video_part(video(7, 40, 10)))]
    grids = [
        preprocess(messages, **params)["visuals"][0]["grid_thw"][0]
        for params in ({}, {"video_fps": 1}, {"video_fps": None})
    ]
    assert grids == [4, 2, 20]


def test_a_spoken_answer_has_the_prompt_that_it_needs(oracle: OmniOracle, preprocess: Any) -> None:
    asked = [{"role": "user", "content": "Hello"}]
    reported = [{"role": "system", "content": SPEECH_PROMPT}, *asked]
    own = [{"role": "system", "content": "Be brief."}, *asked]
    written, spoken = (preprocess(asked, spoken=each)["prompt_token_ids"] for each in (False, True))
    assert spoken == preprocess(reported)["prompt_token_ids"] != written
    assert preprocess(own, spoken=True)["prompt_token_ids"] == preprocess(own)["prompt_token_ids"]


def test_a_clip_longer_than_the_model_hears_is_refused(preprocess: Any) -> None:
    with pytest.raises(RequestError, match=r"301 s long; this model hears at most 300 s"):
        preprocess([user(audio_part(silence(301)))])
