"""Higgs Audio v2's pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.weights import weights_identity
from sglang_omni.config.schema import StageConfig
from sglang_omni.models.frames.config import FramesPipelineConfig, speech_stages
from sglang_omni.models.higgs_audio_v2.codec_place import codec_dir
from sglang_omni.models.higgs_audio_v2.decoders import decoder_config
from sglang_omni.models.higgs_audio_v2.request_params import REQUEST_PARAMS, VOICES
from sglang_omni.preprocessing.request_params import RequestParams

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig

_STAGES = "sglang_omni.models.higgs_audio_v2.stages"


class HiggsAudioPipelineConfig(FramesPipelineConfig):
    """Text, and perhaps the recording of a voice, in; speech out."""

    voices: ClassVar[tuple[str, ...]] = VOICES
    voice_source: ClassVar[str] = "the model makes it up by text and scene"
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "higgs-audio-v2"
    stages: list[StageConfig] = Field(default_factory=lambda: speech_stages(_STAGES, codec=_STAGES))

    @property
    def speech_sampling(self) -> tuple[dict[str, Any], str]:
        # It brings torch.
        from sglang_omni.models.higgs_audio_v2.components.checkpoint import HiggsCheckpoint

        return dict(HiggsCheckpoint.from_dir(self.model_path).sampling), "its authors' code"

    def voice_encoder(self) -> str:
        """What identifies the encoder of voices."""
        args = merge_factory_args(self.stage("reference"), self)
        return weights_identity(codec_dir(self.model_path, args.get("codec_path")))

    def speech_decoder(self) -> DecoderConfig:
        return decoder_config(json.loads((Path(self.model_path) / "config.json").read_bytes()))

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        if stage.name == "speak":
            return super().memory_demand(stage, args)
        # It brings torch, which the server's process needs for nothing else.
        from sglang_omni.models.higgs_audio_v2.memory import codec_demand

        return codec_demand(self.model_path, stage.name, args)


def default_config(model_path: str) -> HiggsAudioPipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    return HiggsAudioPipelineConfig.placed(model_path)
