"""The encoders of Qwen2.5-Omni give the rows that transformers' thinker puts into its prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from qwen2_5_omni_oracle import OmniOracle
from sample_media import audio_part, image_part, picture, sound, user, video, video_part

from sglang_omni.models.qwen2_5_omni.components.audio import WindowedAudioEncoder
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.vision import WindowedVisionEncoder
from sglang_omni.models.qwen2_5_omni.preprocess import Qwen25Preprocessor
from sglang_omni.proto import OmniRequest, StagePayload

# Pictures of several windows, of which the last are cut, and clips of several pieces.
MESSAGES = [
    user(
        image_part(picture(1, 300, 270)),
        image_part(picture(2, 200, 60)),
        video_part(video(3, 5, 2, 200, 150)),
    ),
    user(*(audio_part(sound(i, seconds)) for i, seconds in enumerate((2.6, 0.35, 4.01, 0.06)))),
]


@pytest.fixture(scope="module")
def oracle(qwen2_5_omni: Any) -> OmniOracle:
    return qwen2_5_omni()


@pytest.fixture(scope="module")
def prompt(oracle: OmniOracle) -> Any:
    processor = Qwen25Preprocessor(Qwen25OmniCheckpoint.from_dir(oracle.path), video_fps=None)
    return processor(StagePayload("r", OmniRequest({"messages": MESSAGES}), None)).data


def check(encoder: Any, items: list[Any], expected: torch.Tensor) -> None:
    """All at once, and each alone."""
    for batches in ([items], [[item] for item in items]):
        rows = torch.cat([rows for batch in batches for (rows,) in encoder.encode(batch)])
        torch.testing.assert_close(rows, expected, rtol=1e-5, atol=2e-6)


def test_pictures_and_videos(oracle: OmniOracle, prompt: Any) -> None:
    inputs = oracle.inputs(MESSAGES, padding=0)
    thinker = oracle.model.thinker
    with torch.inference_mode():
        images = thinker.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        videos = thinker.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"])
    config = Qwen25OmniCheckpoint.from_dir(oracle.path).thinker_config["vision_config"]
    encoder = WindowedVisionEncoder(oracle.path, config, torch.float32)
    check(encoder, prompt["visuals"], torch.cat([*images.pooler_output, *videos.pooler_output]))


def test_clips(oracle: OmniOracle, prompt: Any) -> None:
    inputs = oracle.inputs(MESSAGES, padding=0)
    with torch.inference_mode():
        expected = oracle.model.thinker.get_audio_features(
            inputs["input_features"], inputs["feature_attention_mask"]
        ).last_hidden_state
    config = Qwen25OmniCheckpoint.from_dir(oracle.path).thinker_config["audio_config"]
    encoder = WindowedAudioEncoder.from_checkpoint(oracle.path, "thinker.audio_tower.", config, torch.float32)
    check(encoder, prompt["audios"], expected)
