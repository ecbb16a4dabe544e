"""Qwen3-Omni's pipelines: their stages and the processes of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.gpus import Gpu
from sglang_omni.models.omni import pipelines
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.request_params import REQUEST_PARAMS

_PACKAGE = "sglang_omni.models.qwen3_omni"

speech_stages = partial(pipelines.speech_stages, _PACKAGE)


class Qwen3OmniThinkerPipelineConfig(pipelines.MediaPipelineConfig):
    """Text, images, audio and video in, text out. ``model_path`` is a checkpoint in the hub's layout."""

    package = _PACKAGE
    preload = pipelines.modules_of_stages(_PACKAGE)
    checkpoint_class = Qwen3OmniCheckpoint
    request_params = REQUEST_PARAMS

    name: str | None = "qwen3-omni"
    stages: list[StageConfig] = Field(default_factory=partial(pipelines.thinker_stages, _PACKAGE))


class Qwen3OmniTextPipelineConfig(Qwen3OmniThinkerPipelineConfig):
    """Text in, text out."""

    input_modalities: ClassVar[tuple[str, ...]] = ("text",)

    stages: list[StageConfig] = Field(default_factory=partial(pipelines.text_stages, _PACKAGE))


class Qwen3OmniPipelineConfig(Qwen3OmniThinkerPipelineConfig):
    """Text, images, audio and video in, text and speech out."""

    output_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    terminal_modalities: ClassVar[dict[str, str]] = {"decode": "text", "code2wav": "audio"}

    stages: list[StageConfig] = Field(default_factory=speech_stages)
    terminal_stages_fn: str | None = pipelines.TERMINAL_STAGES


class Qwen3OmniColocatedPipelineConfig(Qwen3OmniPipelineConfig):
    """``Qwen3OmniPipelineConfig`` in one process."""

    stages: list[StageConfig] = Field(default_factory=partial(pipelines.colocated_stages, _PACKAGE))


Qwen3OmniThinkerPipelineConfig.text_only = Qwen3OmniTextPipelineConfig
Qwen3OmniThinkerPipelineConfig.written = Qwen3OmniThinkerPipelineConfig
# Kept for docs/contract.md: the name in existing config files.
Qwen3OmniSpeechColocatedPipelineConfig = Qwen3OmniColocatedPipelineConfig


def default_config(model_path: str, gpus: Sequence[Gpu] | None = None) -> PipelineConfig:
    """The pipeline with speech if the checkpoint has a talker, on the first GPUs if there are any.

    ``sglang_omni.config.fit_memory`` then gives the stages their shares of the GPUs' memory.

    Args:
        model_path: Directory of a checkpoint.
        gpus: The GPUs to use; those of this machine if None.

    Raises:
        FileNotFoundError, ValueError: ``model_path`` is not a Qwen3-Omni checkpoint.
    """
    return pipelines.default_of(Qwen3OmniPipelineConfig, model_path, gpus)
