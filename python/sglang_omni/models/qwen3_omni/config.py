"""Qwen3-Omni's pipelines: their stages and the processes of these."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams
from sglang_omni.relay.shm.cuda_driver import gpu_count

_PACKAGE = "sglang_omni.models.qwen3_omni"
_ENCODERS = ["image_encoder", "audio_encoder"]
# Shares of one GPU's memory. In bfloat16, the published thinker's weights are 61 GB, the talker's 7 GB.
_GPU_SHARES = {
    "image_encoder": 0.06,
    "audio_encoder": 0.06,
    "thinker": 0.66,
    "talker": 0.14,
    "code2wav": 0.06,
}


def thinker_stages() -> list[StageConfig]:
    """Media and text in, text out. Each kind of model has its own process; the other stages share one."""
    return [
        StageConfig(
            name="preprocess",
            factory=f"{_PACKAGE}.stages.create_preprocess",
            factory_args={"speech": False},
            process="io",
            next=[*_ENCODERS, "thinker"],
            route_fn=f"{_PACKAGE}.routing.after_preprocess",
            project_payload={name: f"{_PACKAGE}.routing.to_{name}" for name in (*_ENCODERS, "thinker")},
        ),
        StageConfig(
            name="image_encoder",
            factory=f"{_PACKAGE}.encoders.create_image_encoder",
            process="encoders",
            next="thinker",
        ),
        StageConfig(
            name="audio_encoder",
            factory=f"{_PACKAGE}.encoders.create_audio_encoder",
            process="encoders",
            next="thinker",
        ),
        StageConfig(
            name="thinker",
            factory=f"{_PACKAGE}.stages.create_thinker",
            process="thinker",
            wait_for=["preprocess", *_ENCODERS],
            wait_for_fn=f"{_PACKAGE}.routing.sources_of_thinker",
            merge_fn=f"{_PACKAGE}.aggregate.merge_sources",
            next="decode",
        ),
        StageConfig(name="decode", factory=f"{_PACKAGE}.stages.create_decode", process="io", terminal=True),
    ]


def text_stages() -> list[StageConfig]:
    """Text in, text out: no encoder is loaded."""
    stages = {stage.name: stage for stage in thinker_stages() if stage.name not in _ENCODERS}
    preprocess, thinker = stages["preprocess"], stages["thinker"]
    preprocess.factory_args |= {"media": []}
    preprocess.next = ["thinker"]
    preprocess.project_payload = {"thinker": f"{_PACKAGE}.routing.to_thinker"}
    thinker.wait_for = ["preprocess"]
    return list(stages.values())


def speech_stages() -> list[StageConfig]:
    """The thinker's stages, and those that speak its answer."""
    stages = {stage.name: stage for stage in thinker_stages()}
    preprocess, thinker, decode = stages["preprocess"], stages["thinker"], stages["decode"]
    preprocess.factory_args = {}
    preprocess.next = [*_ENCODERS, "thinker", "talker", "code2wav"]
    preprocess.project_payload |= {name: f"{_PACKAGE}.routing.to_{name}" for name in ("talker", "code2wav")}
    thinker.factory_args = {"speech": True}
    thinker.stream_to = ["talker"]
    thinker.stream_done_to_fn = f"{_PACKAGE}.routing.thinker_stream_ends"
    decode.wait_for = ["thinker", "talker"]
    decode.wait_for_fn = f"{_PACKAGE}.routing.sources_of_decode"
    decode.merge_fn = f"{_PACKAGE}.decode.merge_sources"
    return [
        *stages.values(),
        StageConfig(
            name="talker",
            factory=f"{_PACKAGE}.stages.create_talker",
            process="talker",
            next="decode",
            stream_to=["code2wav"],
            can_accept_stream_before_payload=True,
        ),
        StageConfig(
            name="code2wav",
            factory=f"{_PACKAGE}.stages.create_code2wav",
            process="code2wav",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


def colocated_stages() -> list[StageConfig]:
    """All stages in one process, which takes the least memory; no two stages compute at the same time."""
    stages = speech_stages()
    for stage in stages:
        stage.process = "all"
    return stages


class Qwen3OmniThinkerPipelineConfig(PipelineConfig):
    """Text, images, audio and video in, text out. ``model_path`` is a checkpoint in the hub's layout."""

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("chat", "completion")
    input_modalities: ClassVar[tuple[str, ...]] = ("text", "image", "audio", "video")
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "qwen3-omni"
    stages: list[StageConfig] = Field(default_factory=thinker_stages)
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    def decoder_fields(self, stage: str) -> dict[str, Any] | None:
        """The decoder's fields in the checkpoint's ``config.json``; None for a stage without a decoder."""
        if stage not in ("thinker", "talker"):
            return None
        fields: dict[str, Any] = Qwen3OmniCheckpoint.from_dir(self.model_path).config[f"{stage}_config"]
        return dict(fields["text_config"])


class Qwen3OmniTextPipelineConfig(Qwen3OmniThinkerPipelineConfig):
    """Text in, text out."""

    input_modalities: ClassVar[tuple[str, ...]] = ("text",)

    stages: list[StageConfig] = Field(default_factory=text_stages)


class Qwen3OmniPipelineConfig(Qwen3OmniThinkerPipelineConfig):
    """Text, images, audio and video in, text and speech out."""

    output_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")

    stages: list[StageConfig] = Field(default_factory=speech_stages)
    terminal_stages_fn: str | None = f"{_PACKAGE}.routing.terminal_stages"

    @property
    def voices(self) -> tuple[str, ...]:
        """The checkpoint's speakers."""
        return tuple(Qwen3OmniCheckpoint.from_dir(self.model_path).require_talker().speakers)


class Qwen3OmniColocatedPipelineConfig(Qwen3OmniPipelineConfig):
    """``Qwen3OmniPipelineConfig`` in one process."""

    stages: list[StageConfig] = Field(default_factory=colocated_stages)


# Kept for docs/contract.md: the name in existing config files.
Qwen3OmniSpeechColocatedPipelineConfig = Qwen3OmniColocatedPipelineConfig


def place_on_gpu(config: PipelineConfig, gpu: int) -> None:
    """Places the stages with models on one GPU, each with its share of the memory."""
    for stage in config.stages:
        share = _GPU_SHARES.get(stage.name)
        if share is not None:
            stage.gpu = gpu
            stage.runtime.resources.total_gpu_memory_fraction = share


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline with speech if the checkpoint has a talker, on the first GPU if there is one.

    Raises:
        FileNotFoundError, ValueError: ``model_path`` is not a Qwen3-Omni checkpoint.
    """
    checkpoint = Qwen3OmniCheckpoint.from_dir(model_path)
    kind = Qwen3OmniThinkerPipelineConfig if checkpoint.talker is None else Qwen3OmniPipelineConfig
    config = kind(model_path=model_path)
    if gpu_count() > 0:
        place_on_gpu(config, 0)
    return config
