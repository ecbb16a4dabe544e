"""The stages of a request, and the join of the encoders' rows to the thinker's input."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from sglang_omni.config import validate_config
from sglang_omni.config.plan.pipeline import plan_pipeline
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.omni import decode, embedding_merge, routing
from sglang_omni.models.omni.payloads import MediaShape, Prompt
from sglang_omni.models.omni.pipelines import place_on_gpus
from sglang_omni.models.qwen3_omni.components.checkpoint import TokenIds
from sglang_omni.models.qwen3_omni.config import (
    Qwen3OmniColocatedPipelineConfig,
    Qwen3OmniPipelineConfig,
    Qwen3OmniTextPipelineConfig,
    Qwen3OmniThinkerPipelineConfig,
)
from sglang_omni.proto import OmniRequest, StagePayload

TOKENS = TokenIds(audio=7, image=8, video=9)
HIDDEN = 4


def shape(images: int = 0, videos: int = 0, audios: int = 0) -> MediaShape:
    return MediaShape(
        image_grids=[(1, 2, 2)] * images,
        video_grids=[(1, 2, 2)] * videos,
        video_seconds_per_grid=[1.0] * videos,
        audio_frames=[8] * audios,
        use_audio_in_video=False,
    )


def prompt(ids: list[int], media: MediaShape) -> Prompt:
    return Prompt(
        prompt_token_ids=ids,
        key_token_ids=ids,
        positions=None,
        position_delta=0,
        media=media,
        visuals=[],
        audios=[],
    )


def payload(data: Any, modalities: tuple[str, ...] = ("text",)) -> StagePayload:
    request = OmniRequest(None, metadata={"task": "chat", "output_modalities": list(modalities)})
    return StagePayload("r", request, data)


@pytest.mark.parametrize(
    ("media", "encoders"),
    [
        (shape(), []),
        (shape(images=2), ["image_encoder"]),
        (shape(videos=1), ["image_encoder"]),
        (shape(audios=1), ["audio_encoder"]),
        (shape(videos=1, audios=1), ["image_encoder", "audio_encoder"]),
    ],
)
@pytest.mark.parametrize("modalities", [("text",), ("text", "audio")])
def test_only_stages_with_work_are_visited(
    media: MediaShape, encoders: list[str], modalities: tuple[str, ...]
) -> None:
    preprocessed = payload(prompt([1], media), modalities)
    speech = ["talker", "code2wav"] if "audio" in modalities else []

    assert routing.after_preprocess("r", preprocessed) == [*encoders, "thinker", *speech]
    assert routing.sources_of_thinker("r", "preprocess", routing.to_thinker(preprocessed)) == [
        "preprocess",
        *encoders,
    ]
    assert routing.sources_of_thinker("r", "image_encoder", payload({"visuals": []})) is None
    assert routing.sources_of_decode("r", "thinker", preprocessed) == ["thinker", *speech[:1]]
    assert routing.terminal_stages(preprocessed.request) == ["decode", *speech[1:]]
    assert routing.thinker_stream_ends("r", preprocessed) == speech[:1]


@pytest.mark.parametrize(
    "config",
    [
        Qwen3OmniTextPipelineConfig,
        Qwen3OmniThinkerPipelineConfig,
        Qwen3OmniPipelineConfig,
        Qwen3OmniColocatedPipelineConfig,
    ],
)
def test_the_configs_keep_every_rule(config: Any) -> None:
    validate_config(config(model_path="/nowhere"))


def test_on_one_gpu_are_the_stages_with_models() -> None:
    config = Qwen3OmniPipelineConfig(model_path="/nowhere")
    place_on_gpus(config, [0])
    config.placement.require_memory_fraction_for_colocation = False
    validate_config(config)
    assert [stage.name for stage in config.stages if stage.gpu is None] == ["preprocess", "decode"]
    edges = plan_pipeline(config).edges
    assert {(edge.source, edge.target) for edge in edges if edge.cuda_ipc} >= {
        ("image_encoder", "thinker"),
        ("audio_encoder", "thinker"),
        ("thinker", "talker"),
    }


def rows(first: int, count: int) -> torch.Tensor:
    """Each row holds its own number."""
    return torch.arange(first, first + count).float()[:, None].expand(count, HIDDEN)


def visual(first: int, count: int) -> dict[str, Any]:
    return {"embeds": rows(first, count), "deepstack": [rows(100 + first, count), rows(200 + first, count)]}


def joined(data: Any) -> ThinkerState:
    state = embedding_merge.EmbeddingMerge(TOKENS).state(data, wants_hidden=False)
    assert state is not None
    return state


def test_rows_come_in_the_order_of_the_prompt_whatever_their_kind() -> None:
    # A video's rows interleaved with its sound's, between two images and before another clip.
    ids = [1, 8, 8, 2, 9, 7, 9, 7, 3, 8, 7]
    merged = embedding_merge.merge_sources(
        {
            "audio_encoder": payload({"audios": [{"embeds": rows(40, 2)}, {"embeds": rows(50, 1)}]}),
            "image_encoder": payload({"visuals": [visual(10, 2), visual(20, 1), visual(30, 2)]}),
            "preprocess": payload(prompt(ids, shape(images=2, videos=1, audios=2))),
        }
    )

    state = joined(merged.data)

    assert state.media_positions.tolist() == [1, 2, 4, 5, 6, 7, 9, 10]
    assert state.media_embeds[:, 0].tolist() == [10, 11, 30, 40, 31, 41, 20, 50]
    assert state.visual_positions.tolist() == [1, 2, 4, 6, 9]
    assert [level[:, 0].tolist() for level in state.deepstack] == [
        [110, 111, 130, 131, 120],
        [210, 211, 230, 231, 220],
    ]


def test_a_single_picture_is_not_copied() -> None:
    picture = visual(10, 3)
    state = joined({**prompt([1, 8, 8, 8, 2], shape(images=1)), "visuals": [picture]})
    assert state.media_embeds is picture["embeds"]
    assert [one is other for one, other in zip(state.deepstack, picture["deepstack"], strict=True)] == [
        True
    ] * 2
    assert state.visual_positions.tolist() == [1, 2, 3]


def test_a_text_prompt_carries_no_media() -> None:
    assert (
        embedding_merge.EmbeddingMerge(TOKENS).state(cast(Any, prompt([1, 2], shape())), wants_hidden=True)
        is None
    )


def test_sound_alone_has_no_visual_rows() -> None:
    merged = {**prompt([1, 7, 7], shape(audios=1)), "audios": [{"embeds": rows(40, 2)}]}
    state = joined(merged)
    assert state.media_positions.tolist() == [1, 2]
    assert state.visual_positions.tolist() == list(state.deepstack) == []


def test_rows_and_placeholders_that_differ_in_number_are_named() -> None:
    merged = {**prompt([1, 7, 7], shape(audios=1)), "audios": [{"embeds": rows(40, 3)}]}
    with pytest.raises(ValueError, match="2 audio placeholders, and the encoder gave 3 rows"):
        joined(merged)


def test_decode_tells_of_the_talker_where_there_is_one() -> None:
    thinker = {
        "text": "hi",
        "token_ids": [5, 6],
        "finish_reason": "stop",
        "prompt_tokens": 4,
        "cached_tokens": 3,
    }
    talker = {"finish_reason": "length", "frames": 2}
    merged = decode.merge_sources({"talker": payload(talker), "thinker": payload(thinker)})

    result = decode.decode(merged).data

    assert result["usage"]["total_tokens"] == 6
    assert result["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert result["talker"] == talker
    assert decode.decode(decode.merge_sources({"thinker": payload(thinker)})).data["talker"] is None
