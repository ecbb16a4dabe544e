"""Qwen2.5-Omni's pipelines: their stages and the processes of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.gpus import Gpu
from sglang_omni.models.multimodal import pipelines
from sglang_omni.models.multimodal.pipelines import MediaPipelineConfig, placed
from sglang_omni.models.qwen2_5_omni.components.checkpoint import DEFAULT_SPEAKER, Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.request_params import REQUEST_PARAMS, TALKER_DEFAULTS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.qwen2_5_omni"

thinker_stages = partial(pipelines.thinker_stages, _PACKAGE)
text_stages = partial(pipelines.text_stages, _PACKAGE)
speech_stages = partial(pipelines.speech_stages, _PACKAGE)
colocated_stages = partial(pipelines.colocated_stages, _PACKAGE)


class Qwen25OmniThinkerPipelineConfig(MediaPipelineConfig):
    """Text, images, audio and video in, text out. ``model_path`` is a checkpoint in the hub's layout."""

    request_params: ClassVar[RequestParams] = REQUEST_PARAMS
    talker_defaults = TALKER_DEFAULTS
    checkpoint_class = Qwen25OmniCheckpoint

    name: str | None = "qwen2.5-omni"
    stages: list[StageConfig] = Field(default_factory=thinker_stages)

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What one rank of a stage wants of a GPU; ``config.memory`` asks."""
        # Imported late: it brings torch.
        from sglang_omni.models.qwen2_5_omni.memory import stage_demand

        checkpoint = Qwen25OmniCheckpoint.from_dir(self.model_path)
        args = {"tp_size": stage.tp_size, "joins_media": self.joins_on_gpu, **args}
        return stage_demand(checkpoint, stage.name, args, self._stored_item)


class Qwen25OmniTextPipelineConfig(Qwen25OmniThinkerPipelineConfig):
    """Text in, text out."""

    input_modalities: ClassVar[tuple[str, ...]] = ("text",)

    stages: list[StageConfig] = Field(default_factory=text_stages)


class Qwen25OmniPipelineConfig(Qwen25OmniThinkerPipelineConfig):
    """Text, images, audio and video in, text and speech out."""

    output_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    terminal_modalities: ClassVar[dict[str, str]] = {"decode": "text", "code2wav": "audio"}

    stages: list[StageConfig] = Field(default_factory=speech_stages)
    terminal_stages_fn: str | None = pipelines.TERMINAL_STAGES

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of the checkpoint's voices, in lower case, the default first."""
        checkpoint = Qwen25OmniCheckpoint.from_dir(self.model_path)
        checkpoint.require_talker()
        return tuple(sorted(checkpoint.voices, key=lambda name: name != DEFAULT_SPEAKER))


class Qwen25OmniColocatedPipelineConfig(Qwen25OmniPipelineConfig):
    """``Qwen25OmniPipelineConfig`` in one process."""

    stages: list[StageConfig] = Field(default_factory=colocated_stages)


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
    checkpoint = Qwen25OmniCheckpoint.from_dir(model_path)
    kind = Qwen25OmniThinkerPipelineConfig if checkpoint.talker is None else Qwen25OmniPipelineConfig
    return placed(kind(model_path=model_path), gpus)
