"""Qwen3-ASR's pipeline: its stages and their processes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.gpus import visible_gpus
from sglang_omni.models.qwen3_asr.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.qwen3_asr"


def qwen3_asr_stages() -> list[StageConfig]:
    """Two stages in two processes: checks take nothing from the thread that steps the engine."""
    return [
        StageConfig(
            name="preprocess",
            factory=f"{_PACKAGE}.stages.create_preprocess",
            process="io",
            next="transcribe",
        ),
        StageConfig(
            name="transcribe",
            factory=f"{_PACKAGE}.stages.create_transcribe",
            process="transcribe",
            terminal=True,
        ),
    ]


class Qwen3ASRPipelineConfig(PipelineConfig):
    """Recordings in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout."""

    tasks: ClassVar[tuple[str, ...]] = ("transcription",)
    input_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    stages: list[StageConfig] = Field(default_factory=qwen3_asr_stages)
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    config = Qwen3ASRPipelineConfig(model_path=model_path)
    if visible_gpus():
        config.stage("transcribe").gpu = 0
    return config
