"""CSM's pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from sglang_omni.config.schema import StageConfig
from sglang_omni.models.csm.request_params import REQUEST_PARAMS, SPEAKERS
from sglang_omni.models.frames.config import FramesPipelineConfig, speech_stages
from sglang_omni.preprocessing.request_params import RequestParams

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig


class CsmPipelineConfig(FramesPipelineConfig):
    """Text, and perhaps the recording of a voice, in; speech out."""

    voices: ClassVar[tuple[str, ...]] = SPEAKERS
    spoken_languages: ClassVar[tuple[str, ...]] = ("en",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "csm"
    stages: list[StageConfig] = Field(default_factory=lambda: speech_stages("sglang_omni.models.csm.stages"))

    def speech_decoder(self) -> DecoderConfig:
        return decoder_config(json.loads((Path(self.model_path) / "config.json").read_bytes()))


def decoder_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """The shape of one of the model's two decoders, both of which are Llama's."""
    # It brings torch.
    from sglang_omni.model_runner.config import DecoderConfig

    # transformers' theta for a config.json without it.
    fields = {"rope_theta": 500_000.0, **fields, "eos_token_id": None}
    return DecoderConfig.from_dict(fields, "llama")


def default_config(model_path: str) -> CsmPipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    return CsmPipelineConfig.placed(model_path)
