"""Qwen3-TTS's pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.weights import weights_identity
from sglang_omni.config.schema import StageConfig
from sglang_omni.models.frames.config import VOICE, FramesPipelineConfig, speech_stages
from sglang_omni.models.qwen3_tts.components.codec_config import FOLDER
from sglang_omni.models.qwen3_tts.decoders import decoder_config
from sglang_omni.models.qwen3_tts.kinds import Kind, kind_of, languages_of, request_params, voices_of
from sglang_omni.preprocessing.languages import language_code
from sglang_omni.preprocessing.request_params import RequestParams
from sglang_omni.preprocessing.text import read_json

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig

_PACKAGE = "sglang_omni.models.qwen3_tts"
_SOURCES: Mapping[Kind, str] = {
    "base": "that of the recording that comes with each text",
    "custom_voice": "the first speaker of config.json",
    "voice_design": "the one that a request's instructions describe",
}


def cloning_stages() -> list[StageConfig]:
    """Text, and the recording of a voice, in; speech out."""
    return speech_stages(
        f"{_PACKAGE}.stages", codec=f"{_PACKAGE}.codec_stages", routing=f"{_PACKAGE}.routing", continues=True
    )


def own_voices_stages() -> list[StageConfig]:
    """Text in, speech out."""
    stages = {stage.name: stage for stage in cloning_stages() if stage.name not in ("reference", VOICE)}
    stages["preprocess"].next = ["speak", "code2wav"]
    return list(stages.values())


class Qwen3TTSPipelineConfig(FramesPipelineConfig):
    """Text in, speech out: in one of the model's voices, or in one that is described.

    ``model_path`` is a checkpoint in the published layout, of which ``config.json`` says its kind.
    """

    models: ClassVar[tuple[str, ...]] = ("speak", "code2wav")

    name: str | None = "qwen3-tts"
    stages: list[StageConfig] = Field(default_factory=own_voices_stages)

    @property
    def _fields(self) -> dict[str, Any]:
        return read_json(Path(self.model_path) / "config.json")

    @property
    def _kind(self) -> Kind:
        return kind_of(self._fields, self.model_path)

    @property
    def voices(self) -> tuple[str, ...]:
        """The model's own, or the one name of a voice that comes with the text."""
        return voices_of(self._fields, self._kind)

    @property
    def voice_source(self) -> str:
        return _SOURCES[self._kind]

    @property
    def spoken_languages(self) -> tuple[str, ...]:
        return tuple(language_code(name) for name in languages_of(self._fields))

    @property
    def request_params(self) -> RequestParams:
        return request_params(self._fields, self._kind)

    @property
    def speech_sampling(self) -> tuple[dict[str, Any], str]:
        # It brings torch.
        from sglang_omni.models.qwen3_tts.components.checkpoint import Qwen3TTSCheckpoint

        return dict(Qwen3TTSCheckpoint.from_dir(self.model_path).sampling), "its authors' code"

    def speech_decoder(self) -> DecoderConfig:
        return decoder_config(self._fields["talker_config"])

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        if stage.name == "speak":
            return super().memory_demand(stage, args)
        # It brings torch, which the server's process needs for nothing else.
        from sglang_omni.models.qwen3_tts.memory import codec_demand

        return codec_demand(self.model_path, stage.name, args)


class Qwen3TTSCloningPipelineConfig(Qwen3TTSPipelineConfig):
    """Text, and the recording of a voice, in; speech in that voice out."""

    models: ClassVar[tuple[str, ...]] = ("reference", "speak", "code2wav")

    stages: list[StageConfig] = Field(default_factory=cloning_stages)

    def voice_encoder(self) -> str:
        """What identifies the encoders of voices."""
        codec = weights_identity(Path(self.model_path) / FOLDER, ("encoder.",))
        return f"{codec}-{weights_identity(self.model_path, ('speaker_encoder.',))}"


def default_config(model_path: str) -> Qwen3TTSPipelineConfig:
    """The pipeline for a checkpoint's kind, on the first GPU if there is one.

    Raises:
        ValueError: It is no Qwen3-TTS checkpoint.
    """
    kind = kind_of(read_json(Path(model_path) / "config.json"), model_path)
    chosen = Qwen3TTSCloningPipelineConfig if kind == "base" else Qwen3TTSPipelineConfig
    return chosen.placed(model_path)
