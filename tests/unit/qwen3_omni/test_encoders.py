"""The encoders' stages give the rows that transformers' thinker puts into its prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_media import audio_part, image_part, picture, sound, user, video, video_part
from scheduler_runs import running

from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.encoders import create_audio_encoder, create_image_encoder
from sglang_omni.models.qwen3_omni.preprocess import Qwen3OmniPreprocessor
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

MESSAGES = [
    user(image_part(picture(1)), audio_part(sound(1, 2.6)), audio_part(sound(2, 0.35)), "Compare."),
    {"role": "assistant", "content": "They differ."},
    user(video_part(video(3, 5)), image_part(picture(2, 200, 60)), audio_part(sound(3, 9.01))),
]


@pytest.fixture(scope="module", params=["default", "deep"])
def oracle(qwen3_omni, request: pytest.FixtureRequest) -> Any:
    return qwen3_omni(shape=request.param)


def ask(scheduler: OmniScheduler, *data: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of requests that are all there when the stage starts, in their order."""
    for index, each in enumerate(data):
        payload = StagePayload(str(index), OmniRequest(None), each)
        scheduler.inbox.put(IncomingMessage(str(index), "new_request", payload))
    results = {}
    with running(scheduler):
        for _ in data:
            message = scheduler.outbox.get(timeout=60)
            assert message.type == "result", message.data
            results[message.request_id] = message.data.data
    return [results[str(index)] for index in range(len(data))]


def preprocess(oracle: Any, messages: list[dict[str, Any]]) -> Any:
    processor = Qwen3OmniPreprocessor(Qwen3OmniCheckpoint.from_dir(oracle.path))
    return processor(StagePayload("r", OmniRequest({"messages": messages}), None)).data


def by_visual(level: Any, alike: Any) -> Any:
    """A level's rows for each visual, which older transformers leaves together."""
    return level.split([len(rows) for rows in alike]) if isinstance(level, torch.Tensor) else level


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to the order in which a product of another size is summed."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_images_and_videos(oracle) -> None:
    thinker = oracle.model.thinker
    inputs = oracle.inputs(MESSAGES)
    with torch.inference_mode():
        images = thinker.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        videos = thinker.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"])
    prompt = preprocess(oracle, MESSAGES)
    (found,) = ask(create_image_encoder(str(oracle.path)), {"visuals": prompt["visuals"]})
    for index, visual in enumerate(found["visuals"]):
        source, at = (images, index) if index < 2 else (videos, index - 2)
        assert_close(visual["embeds"], source.pooler_output[at])
        assert len(visual["deepstack"]) == len(thinker.config.vision_config.deepstack_visual_indexes)
        for level, expected in zip(visual["deepstack"], source.deepstack_features, strict=True):
            assert_close(level, by_visual(expected, source.pooler_output)[at])


def test_audio(oracle) -> None:
    inputs = oracle.inputs(MESSAGES)
    with torch.inference_mode():
        expected = oracle.model.thinker.get_audio_features(
            inputs["input_features"], inputs["feature_attention_mask"]
        ).last_hidden_state
    prompt = preprocess(oracle, MESSAGES)
    (found,) = ask(create_audio_encoder(str(oracle.path)), {"audios": prompt["audios"]})
    assert_close(torch.cat([audio["embeds"] for audio in found["audios"]]), expected)


@pytest.mark.parametrize("lengths", [(0.2, 0.37), (0.2, 2.6)])
def test_short_clips_one_by_one(qwen3_omni, lengths: tuple[float, ...]) -> None:
    """A clip under a second comes out otherwise beside a longer one, in its batch or not."""
    oracle = qwen3_omni()
    messages = [user(*(audio_part(sound(i, seconds)) for i, seconds in enumerate(lengths)))]
    inputs = oracle.inputs(messages)
    with torch.inference_mode():
        expected = oracle.model.thinker.get_audio_features(
            inputs["input_features"], inputs["feature_attention_mask"]
        ).last_hidden_state
    scheduler = create_audio_encoder(str(oracle.path))
    rows = [
        ask(scheduler, {"audios": [item]})[0]["audios"][0]["embeds"]
        for item in preprocess(oracle, messages)["audios"]
    ]
    assert_close(torch.cat(rows), expected)


def test_a_batch_gives_what_each_gives_alone(qwen3_omni) -> None:
    oracle = qwen3_omni()
    visuals = [
        preprocess(oracle, [user(image_part(picture(i, 40 + 30 * i, 200 - 20 * i)))])["visuals"]
        for i in range(6)
    ]
    audios = [
        preprocess(oracle, [user(audio_part(sound(i, seconds)))])["audios"]
        for i, seconds in enumerate((0.2, 3.3, 0.9, 1.0, 0.2, 12.4))
    ]
    for name, make, items in (
        ("visuals", create_image_encoder, visuals),
        ("audios", create_audio_encoder, audios),
    ):
        scheduler = make(str(oracle.path), cache_bytes=0)
        alone = [ask(scheduler, {name: item})[0] for item in items]
        assert scheduler.stats()["max_batch_size"] == 1
        together = ask(scheduler, *({name: item} for item in items))
        assert scheduler.stats()["max_batch_size"] > 2
        for one, other in zip(alone, together, strict=True):
            assert_close(one[name][0]["embeds"], other[name][0]["embeds"])


def test_the_same_picture_is_encoded_once(qwen3_omni) -> None:
    oracle = qwen3_omni()
    prompts = [
        preprocess(oracle, [user(image_part(picture(1)), text, image_part(picture(seed)))])
        for text, seed in (("first", 2), ("second", 1), ("third", 2))
    ]
    scheduler = create_image_encoder(str(oracle.path))
    results = ask(scheduler, *({"visuals": prompt["visuals"]} for prompt in prompts))
    stats = scheduler.stats()
    assert stats["num_items_total"] == stats["cache_misses_total"] == 2
    assert stats["cache_hits_total"] == 4
    assert torch.equal(results[0]["visuals"][0]["embeds"], results[1]["visuals"][1]["embeds"])
    assert torch.equal(results[0]["visuals"][1]["embeds"], results[2]["visuals"][1]["embeds"])


def test_only_an_encoders_own_tensors_are_read(qwen3_omni, tmp_path: Path) -> None:
    oracle = qwen3_omni()
    index = json.loads((oracle.path / "model.safetensors.index.json").read_text())
    shards = {file for name, file in index["weight_map"].items() if name.startswith("thinker.audio_tower.")}
    others = set(index["weight_map"].values()) - shards
    assert others
    shutil.copytree(oracle.path, tmp_path / "part", ignore=shutil.ignore_patterns(*others))
    create_audio_encoder(str(tmp_path / "part"))


def test_a_missing_tensor_is_named(qwen3_omni, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(qwen3_omni().path, copy)
    file = copy / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    del index["weight_map"]["thinker.visual.blocks.1.attn.qkv.bias"]
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lacks the tensor 'thinker\.visual\.blocks\.1\.attn\.qkv\.bias'"):
        create_image_encoder(str(copy))


def test_half_precision(qwen3_omni) -> None:
    oracle = qwen3_omni()
    prompt = preprocess(oracle, MESSAGES)
    for name, make in (("visuals", create_image_encoder), ("audios", create_audio_encoder)):
        found = {}
        for dtype in ("float32", "bfloat16"):
            (result,) = ask(make(str(oracle.path), dtype=dtype), {name: prompt[name]})
            found[dtype] = result[name][0]["embeds"]
        assert found["bfloat16"].dtype == torch.bfloat16
        torch.testing.assert_close(found["bfloat16"].float(), found["float32"], rtol=0.1, atol=0.2)
