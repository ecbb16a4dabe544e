"""Qwen2.5-Omni's pipelines: their stages and the processes of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.gpus import Gpu
from sglang_omni.models.omni import pipelines
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.request_params import REQUEST_PARAMS

_PACKAGE = "sglang_omni.models.qwen2_5_omni"

speech_stages = partial(pipelines.speech_stages, _PACKAGE)


class Qwen25OmniThinkerPipelineConfig(pipelines.MediaPipelineConfig):
    """Text, images, audio and video in, text out. ``model_path`` is a checkpoint in the hub's layout."""

    package = _PACKAGE
    preload = pipelines.modules_of_stages(_PACKAGE)
    checkpoint_class = Qwen25OmniCheckpoint
    request_params = REQUEST_PARAMS

    name: str | None = "qwen2.5-omni"
    stages: list[StageConfig] = Field(default_factory=partial(pipelines.thinker_stages, _PACKAGE))


class Qwen25OmniTextPipelineConfig(Qwen25OmniThinkerPipelineConfig):
    """Text in, text out."""

    input_modalities: ClassVar[tuple[str, ...]] = ("text",)

    stages: list[StageConfig] = Field(default_factory=partial(pipelines.text_stages, _PACKAGE))


class Qwen25OmniPipelineConfig(Qwen25OmniThinkerPipelineConfig):
    """Text, images, audio and video in, text and speech out."""

    output_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    terminal_modalities: ClassVar[dict[str, str]] = {"decode": "text", "code2wav": "audio"}

    stages: list[StageConfig] = Field(default_factory=speech_stages)
    terminal_stages_fn: str | None = pipelines.TERMINAL_STAGES


class Qwen25OmniColocatedPipelineConfig(Qwen25OmniPipelineConfig):
    """``Qwen25OmniPipelineConfig`` in one process."""

    stages: list[StageConfig] = Field(default_factory=partial(pipelines.colocated_stages, _PACKAGE))


Qwen25OmniThinkerPipelineConfig.text_only = Qwen25OmniTextPipelineConfig
Qwen25OmniThinkerPipelineConfig.written = Qwen25OmniThinkerPipelineConfig


def default_config(model_path: str, gpus: Sequence[Gpu] | None = None) -> PipelineConfig:
    """The pipeline with speech if the checkpoint has a talker, on the first GPUs if there are any.

    ``sglang_omni.config.fit_memory`` then gives the stages their shares of the GPUs' memory.

    Args:
        model_path: Directory of a checkpoint.
        gpus: The GPUs to use; those of this machine if None.

    Raises:
        FileNotFoundError, ValueError: ``model_path`` is not a Qwen2.5-Omni checkpoint.
    """
    return pipelines.default_of(Qwen25OmniPipelineConfig, model_path, gpus)
