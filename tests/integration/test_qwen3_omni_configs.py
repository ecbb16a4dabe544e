"""Pipelines without all stages, in this process: their answers and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qwen3_omni_cases import Case, all_cases, differences
from qwen3_omni_oracle import Oracle
from sample_media import image_part, picture, user

from sglang_omni.config import PipelineConfig
from sglang_omni.models.qwen3_omni.config import (
    Qwen3OmniPipelineConfig,
    Qwen3OmniTextPipelineConfig,
    Qwen3OmniThinkerPipelineConfig,
)
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.serve.launch.pipelines import load_pipeline

_ids = (f"request-{number}" for number in itertools.count())


def request(case: Case, modalities: tuple[str, ...]) -> OmniRequest:
    params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": case.max_tokens}
    if "audio" in modalities:
        params |= {**case.params, "voice": case.speaker}
    metadata = {"task": "chat", "output_modalities": list(modalities)}
    return OmniRequest({"messages": case.messages}, params, metadata)


async def answer(config: PipelineConfig, *requests: OmniRequest) -> list[Any]:
    """Each request's result, or its error."""
    coordinator, stages = compile_pipeline(config)
    async with PipelineRunner(coordinator, stages):
        results: list[Any] = []
        for one in requests:
            try:
                results.append(await coordinator.submit(next(_ids), one))
            except RequestError as error:
                results.append(error)
        return results


def cases(*names: str) -> list[Case]:
    return [case for name in names for case in all_cases() if case.name == name]


async def test_without_encoders_there_is_text_alone(qwen3_omni: Callable[..., Oracle]) -> None:
    oracle = qwen3_omni()
    (text,) = cases("text")
    shown = Case("image", [user(image_part(picture(1)), "What is this?")])

    said, refused, silent = await answer(
        Qwen3OmniTextPipelineConfig(model_path=str(oracle.path)),
        request(text, ("text",)),
        request(shown, ("text",)),
        request(text, ("text", "audio")),
    )

    assert said["token_ids"] == text.expected(oracle).token_ids
    assert isinstance(refused, RequestError)
    assert "image_url" in refused.message
    assert isinstance(silent, RequestError)
    assert "in text only" in silent.message


async def test_without_a_talker_media_are_answered_in_text(qwen3_omni: Callable[..., Oracle]) -> None:
    oracle = qwen3_omni()
    asked = cases("image+audio", "three turns", "video with its sound")
    sound_in_video = request(asked[2], ("text",))
    sound_in_video.params["use_audio_in_video"] = True

    results = await answer(
        Qwen3OmniThinkerPipelineConfig(model_path=str(oracle.path)),
        request(asked[0], ("text",)),
        request(asked[1], ("text",)),
        sound_in_video,
    )

    assert [result["token_ids"] for result in results] == [case.expected(oracle).token_ids for case in asked]


async def test_another_shape_speaks_and_its_picture_is_remembered(qwen3_omni: Callable[..., Oracle]) -> None:
    oracle = qwen3_omni(seed=1, shape="deep")
    ((case, right),) = [case.spoken_by(oracle) for case in cases("three turns")]
    speech = request(case, ("text", "audio"))
    config = Qwen3OmniPipelineConfig(
        model_path=str(oracle.path),
        runtime_overrides={"thinker": {"chunked_prefill_size": 16, "engine": "omni"}},
    )

    first, again = await answer(config, speech, speech)

    assert differences(right, first) == differences(right, again) == ""
    assert first["decode"]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["decode"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_checkpoint_decides_whether_there_is_speech(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "speaks", seed=0)
    make_tiny_checkpoint(tmp_path / "writes", seed=0, shape=TinyShape(talker=False))

    speaks, writes = (load_pipeline(str(tmp_path / name), None) for name in ("speaks", "writes"))

    assert set(getattr(speaks, "voices")) == {"aiden", "chelsie", "ethan"}  # noqa: B009 - of this config class
    assert type(writes) is Qwen3OmniThinkerPipelineConfig
    with pytest.raises(ValueError, match="answers in text alone"):
        Qwen3OmniPipelineConfig(model_path=str(tmp_path / "writes")).voices  # noqa: B018
