"""CSM's pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from sglang_omni.config.plan.weights import weights_identity
from sglang_omni.config.schema import StageConfig
from sglang_omni.models.codecs.mimi_stages import PREFIX
from sglang_omni.models.csm.decoders import decoder_config
from sglang_omni.models.csm.request_params import REQUEST_PARAMS, SPEAKERS
from sglang_omni.models.frames.config import FramesPipelineConfig, speech_stages
from sglang_omni.preprocessing.request_params import RequestParams

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig


class CsmPipelineConfig(FramesPipelineConfig):
    """Text, and perhaps the recording of a voice, in; speech out."""

    voices: ClassVar[tuple[str, ...]] = SPEAKERS
    spoken_languages: ClassVar[tuple[str, ...]] = ("en",)
    voice_source: ClassVar[str] = "the first speaker; the model makes up how it sounds"
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "csm"
    stages: list[StageConfig] = Field(default_factory=lambda: speech_stages("sglang_omni.models.csm.stages"))

    @property
    def speech_sampling(self) -> tuple[dict[str, Any], str]:
        # It brings torch.
        from sglang_omni.models.csm.components.checkpoint import CsmCheckpoint

        return dict(CsmCheckpoint.from_dir(self.model_path).sampling), "Sesame's own code"

    def voice_encoder(self) -> str:
        """What identifies the encoder of voices."""
        return weights_identity(self.model_path, (PREFIX,))

    def speech_decoder(self) -> DecoderConfig:
        return decoder_config(json.loads((Path(self.model_path) / "config.json").read_bytes()))


def default_config(model_path: str) -> CsmPipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    return CsmPipelineConfig.placed(model_path)
