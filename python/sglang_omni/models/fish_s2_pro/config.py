"""Fish Audio S2-Pro's pipeline: its stages and their processes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.models.fish_s2_pro.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.fish_s2_pro"


def codes_stages() -> list[StageConfig]:
    return [
        StageConfig(
            name="preprocess", factory=f"{_PACKAGE}.stages.create_preprocess", process="io", next="dual_ar"
        ),
        StageConfig(
            name="dual_ar", factory=f"{_PACKAGE}.stages.create_dual_ar", process="dual_ar", terminal=True
        ),
    ]


class FishS2CodesPipelineConfig(PipelineConfig):
    """Text in, codes of speech out. The codec that turns codes into sound is not part of the pipeline.

    ``model_path`` is a checkpoint in the published layout. The result is ``{"codes", "finish_reason",
    "prompt_tokens"}``, codes (frames, groups) int64.
    """

    # No task of OpenAI's API: there is no audio.
    tasks: ClassVar[tuple[str, ...]] = ()
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "fish-s2-pro-codes"
    stages: list[StageConfig] = Field(default_factory=codes_stages)
    entry_stage: str | None = "preprocess"
