"""Preprocessing gives what the checkpoint's own processor and transformers' model give."""

from __future__ import annotations

import copy
import io
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from sample_media import audio_part, image_part, picture, sound, user, video, video_part

from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.preprocess import Qwen3OmniPreprocessor
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

SYSTEM = {"role": "system", "content": "You are brief."}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [SYSTEM, {"role": "user", "content": "Where is the blue bird? 你好"}],
    "image": [user(image_part(picture(1)), "What is this?")],
    "two images of one size": [user(image_part(picture(1)), "and", image_part(picture(2)), "?")],
    "images of many sizes": [
        user(*(image_part(picture(i, 37 * i, 300 - 40 * i)) for i in range(1, 5)), "Compare them.")
    ],
    "audio": [user(audio_part(sound(1)), "What is said?")],
    "audios of many lengths": [
        user(*(audio_part(sound(i, seconds)) for i, seconds in enumerate((0.31, 2.75, 1.0, 0.07))))
    ],
    "short audios": [user(audio_part(sound(1, 0.2)), audio_part(sound(2, 0.63)), "Which?")],
    "resampled stereo": [user(audio_part(sound(3, 1.3, 44_100, 2)))],
    "image and audio": [SYSTEM, user(audio_part(sound(4)), image_part(picture(4)), "Describe both.")],
    "video": [user(video_part(video(1)), "What happens?")],
    "videos, one odd": [user(video_part(video(1, 3)), "then", video_part(video(2, 5, 4, 128, 48)))],
    "three turns": [
        SYSTEM,
        user(image_part(picture(5)), "What is this?"),
        {"role": "assistant", "content": "A picture."},
        user("And this?", audio_part(sound(5, 0.4)), video_part(video(5, 4))),
        {"role": "assistant", "content": "A tone."},
        {"role": "user", "content": "Thank you."},
    ],
}
WITH_SOUND: dict[str, list[dict[str, Any]]] = {
    "video": [user(video_part(video(1, with_sound=True)), "What happens?")],
    "long frames": [user(video_part(video(2, 4, 1, with_sound=True)))],
    "short sound": [user(video_part(video(3, 24, 30, with_sound=True)))],
    "everything": [
        user(audio_part(sound(1)), image_part(picture(1)), video_part(video(4, with_sound=True))),
        {"role": "assistant", "content": "I see."},
        user(video_part(video(5, 2, 2, with_sound=True)), image_part(picture(2)), audio_part(sound(6, 0.5))),
    ],
}


@pytest.fixture(scope="module")
def preprocess(qwen3_omni):
    processor = Qwen3OmniPreprocessor(Qwen3OmniCheckpoint.from_dir(qwen3_omni().path))

    def call(messages: list[dict[str, Any]], **params: Any) -> dict[str, Any]:
        request = OmniRequest({"messages": messages}, params)
        return processor(StagePayload("r", request, None)).data

    return call


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_media_and_tokens_are_the_processors(qwen3_omni, preprocess, name: str) -> None:
    check_against_oracle(qwen3_omni(), preprocess(CONVERSATIONS[name]), CONVERSATIONS[name])


@pytest.mark.parametrize("name", WITH_SOUND)
def test_videos_with_their_sound_are_the_processors(qwen3_omni, preprocess, name: str) -> None:
    prompt = preprocess(WITH_SOUND[name], use_audio_in_video=True)
    check_against_oracle(qwen3_omni(), prompt, WITH_SOUND[name], use_audio_in_video=True)


@pytest.mark.parametrize("fps", [1, 2])
def test_frames_are_sampled_as_transformers_samples_them(qwen3_omni, preprocess, fps: int) -> None:
    messages = [user(video_part(video(7, 40, 10)), "What happens?")]
    oracle = qwen3_omni()
    prompt = preprocess(messages, video_fps=fps)
    metadata = [{"total_num_frames": 40, "fps": 10.0}]
    options = {"fps": fps, "do_sample_frames": True, "video_metadata": metadata}
    check_against_oracle(oracle, prompt, messages, **options)
    assert prompt["media"]["video_seconds_per_grid"] == [2 / fps]
    assert prompt["visuals"][0]["grid_thw"][0] == 2 * fps


def test_frame_rates_per_stage_and_per_request(qwen3_omni) -> None:
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni().path)
    processor = Qwen3OmniPreprocessor(checkpoint, video_fps=1)
    inputs = {"messages": [user(video_part(video(7, 40, 10)))]}
    grids = [
        processor(StagePayload("r", OmniRequest(inputs, params), None)).data["visuals"][0]["grid_thw"][0]
        for params in ({}, {"stage_params": {"preprocess": {"video_fps": 2}}}, {"video_fps": None})
    ]
    assert grids == [2, 4, 20]


def check_against_oracle(
    oracle: Any, prompt: dict[str, Any], messages: list[dict[str, Any]], **options: Any
) -> None:
    expected = oracle.inputs(messages, **options)
    assert prompt["prompt_token_ids"] == expected["input_ids"][0].tolist()
    images = [item for item in prompt["visuals"] if item["kind"] == "image"]
    videos = [item for item in prompt["visuals"] if item["kind"] == "video"]
    for items, name, grid in (
        (images, "pixel_values", "image_grid_thw"),
        (videos, "pixel_values_videos", "video_grid_thw"),
    ):
        assert [item["grid_thw"] for item in items] == [tuple(g) for g in expected.get(grid, [])]
        if items:
            assert torch.equal(torch.cat([item["pixel_values"] for item in items]), expected[name])
    if prompt["audios"]:
        mask = expected["feature_attention_mask"].bool()
        for item, features, valid in zip(prompt["audios"], expected["input_features"], mask, strict=True):
            assert torch.equal(item["input_features"], features[:, valid])
    check_positions(oracle, prompt, expected, options.get("use_audio_in_video", False))
    check_rows(oracle, prompt)


def check_positions(oracle: Any, prompt: dict[str, Any], expected: Any, with_sound: bool) -> None:
    mask = expected.get("feature_attention_mask")
    seconds = expected.get("video_second_per_grid")
    positions, delta = oracle.model.thinker.get_rope_index(
        expected["input_ids"],
        expected.get("image_grid_thw"),
        expected.get("video_grid_thw"),
        expected["attention_mask"],
        with_sound,
        None if mask is None else mask.sum(-1),
        None if seconds is None else torch.as_tensor(seconds),
    )
    length = len(prompt["prompt_token_ids"])
    if prompt["positions"] is None:
        plain = torch.arange(length).expand(3, 1, -1)
        assert torch.equal(positions.long(), plain)
        assert delta.item() == 0
    else:
        assert torch.equal(prompt["positions"], positions[:, 0].long())
        assert torch.equal(positions, positions.round())
    assert prompt["position_delta"] == delta.item()


def check_rows(oracle: Any, prompt: dict[str, Any]) -> None:
    """A placeholder for every row that the model's encoders give, and no other."""
    config = oracle.model.config.thinker_config
    ids = prompt["prompt_token_ids"]
    merge = config.vision_config.spatial_merge_size**2
    for kind, token in (("image", config.image_token_id), ("video", config.video_token_id)):
        patches = sum(len(item["pixel_values"]) for item in prompt["visuals"] if item["kind"] == kind)
        assert ids.count(token) == patches // merge
    rows = 0
    for item in prompt["audios"]:
        features = item["input_features"]
        lengths = torch.tensor([features.shape[1]])
        rows += len(oracle.audio_tower(features, feature_lens=lengths).last_hidden_state)
    assert ids.count(config.audio_token_id) == rows


def plain(width: int, height: int) -> bytes:
    """A white picture."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(buffer, "PNG")
    return buffer.getvalue()


def test_equal_content_has_equal_ids_and_other_content_has_others(preprocess) -> None:
    first, again = (preprocess([user(image_part(picture(1)), "What?")]) for _ in range(2))
    vocab = 640
    placeholders = [i for i, token in enumerate(first["prompt_token_ids"]) if token == 619]
    assert len(placeholders) == 12
    assert first["key_token_ids"] == again["key_token_ids"]
    for place, (token, key) in enumerate(zip(first["prompt_token_ids"], first["key_token_ids"], strict=True)):
        assert (vocab <= key < 2**62) if place in placeholders else key == token
    # The last two have the same pixels in other proportions.
    others = [picture(2), plain(64, 128), plain(128, 64)]
    keys = {preprocess([user(image_part(data))])["visuals"][0]["key"] for data in others}
    assert len(keys | {first["visuals"][0]["key"]}) == 4
    # Another encoding of the same pixels is the same picture.
    bmp = preprocess([user(image_part(picture(1, kind="BMP")), "What?")])
    assert bmp["key_token_ids"] == first["key_token_ids"]
    assert bmp["visuals"][0]["key"] == first["visuals"][0]["key"]


def test_a_videos_frame_rate_is_part_of_its_identity(preprocess) -> None:
    clip = video_part(video(3, 2, 2))
    usual, half = (preprocess([user(clip)], **params) for params in ({}, {"video_fps": 2}))
    assert torch.equal(usual["visuals"][0]["pixel_values"], half["visuals"][0]["pixel_values"])
    assert usual["key_token_ids"] != half["key_token_ids"]


def test_many_threads_at_once_do_not_disturb_one_another(preprocess) -> None:
    names = ["text", "image and audio", "videos, one odd", "three turns"] * 3
    expected = {name: preprocess(CONVERSATIONS[name]) for name in set(names)}
    got: list[Any] = [None] * len(names)

    def work(index: int) -> None:
        got[index] = preprocess(CONVERSATIONS[names[index]])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for name, prompt in zip(names, got, strict=True):
        assert prompt["key_token_ids"] == expected[name]["key_token_ids"]


def test_completions_take_text_and_token_ids(qwen3_omni) -> None:
    oracle = qwen3_omni()
    processor = Qwen3OmniPreprocessor(Qwen3OmniCheckpoint.from_dir(oracle.path))

    def complete(inputs: dict[str, Any]) -> list[int]:
        request = OmniRequest(inputs, metadata={"task": "completion"})
        data = processor(StagePayload("r", request, None)).data
        assert data["positions"] is None
        assert data["key_token_ids"] == data["prompt_token_ids"]
        return data["prompt_token_ids"]

    ids = oracle.processor.tokenizer("Once upon a time").input_ids
    assert complete({"prompt": "Once upon a time"}) == ids
    assert complete({"prompt_token_ids": ids}) == ids


def test_a_checkpoint_without_tokenizer_json_and_of_another_shape(qwen3_omni, tmp_path) -> None:
    import shutil

    oracle = qwen3_omni(shape="narrow")
    copy = tmp_path / "model"
    shutil.copytree(oracle.path, copy, ignore=shutil.ignore_patterns("tokenizer.json", "*.safetensors"))
    processor = Qwen3OmniPreprocessor(Qwen3OmniCheckpoint.from_dir(copy))
    for name in ("text", "three turns"):
        request = OmniRequest({"messages": CONVERSATIONS[name]})
        prompt = processor(StagePayload("r", request, None)).data
        check_against_oracle(oracle, prompt, CONVERSATIONS[name])


def test_an_image_of_low_detail_takes_fewer_tokens(preprocess) -> None:
    part = image_part(picture(1, 1600, 1200))

    def grid(**detail: str) -> tuple[int, int, int]:
        shown = {**part, "image_url": {**part["image_url"], **detail}}
        return preprocess([user(shown, "What is this?")])["visuals"][0]["grid_thw"]

    whole, low = grid(), grid(detail="low")
    assert grid(detail="high") == grid(detail="auto") == whole
    small = image_part(picture(1, 591, 443))  # 512 x 512 pixels in the same proportions
    assert low == preprocess([user(small, "What is this?")])["visuals"][0]["grid_thw"]
    assert low[1] * low[2] < whole[1] * whole[2] / 5
    with pytest.raises(RequestError, match="'auto', 'low' or 'high', got 'fine'"):
        grid(detail="fine")


def test_an_answer_beyond_the_context_is_refused(qwen3_omni) -> None:
    processor = Qwen3OmniPreprocessor(Qwen3OmniCheckpoint.from_dir(qwen3_omni().path), context_length=400)
    messages = [user(image_part(picture(1)), "What is this?")]

    def ask(most: int) -> int:
        request = OmniRequest({"messages": messages}, {"max_new_tokens": most})
        return len(processor(StagePayload("r", request, None)).data["prompt_token_ids"])

    length = ask(1)
    assert ask(400 - length) == length
    with pytest.raises(RequestError, match=f"the prompt {length} tokens long.* at most {400 - length}"):
        ask(401 - length)


@pytest.mark.parametrize(("decoder", "modalities"), [("thinker", ["text"]), ("talker", ["text", "audio"])])
def test_positions_beyond_a_decoders_table_are_refused(
    qwen3_omni, decoder: str, modalities: list[str]
) -> None:
    """A long video of few frames has more positions than tokens, and kernels on a GPU do not check them."""
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni().path)
    messages = [user(video_part(video(1, 4, 1)), "What happens?")]

    def ask(num_positions: int) -> int:
        config = copy.deepcopy(dict(checkpoint.config))
        config[f"{decoder}_config"]["text_config"]["max_position_embeddings"] = num_positions
        processor = Qwen3OmniPreprocessor(replace(checkpoint, config=config))
        request = OmniRequest(
            {"messages": messages}, {"video_fps": 0.05}, metadata={"output_modalities": modalities}
        )
        return len(processor(StagePayload("r", request, None)).data["prompt_token_ids"])

    with pytest.raises(RequestError, match="go up to") as refusal:
        ask(1)
    (last,) = map(int, re.findall(r"go up to (\d+)", str(refusal.value)))
    num_tokens = ask(last + 1)
    assert num_tokens < last - 20
    with pytest.raises(RequestError, match=f"go up to {last}, .*the {decoder} .* knows {last}:") as refusal:
        ask(last)
    assert (refusal.value.status, refusal.value.code) == (400, "context_length_exceeded")
    if decoder == "talker":
        # An answer in text has no need of the talker.
        modalities[:] = ["text"]
        assert ask(last) == num_tokens
