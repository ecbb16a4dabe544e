"""Kokoro's pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import tensor_sizes
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default, first_voice
from sglang_omni.models.frames.config import SpeechPipelineConfig
from sglang_omni.models.kokoro.components.checkpoint import DEFAULT_VOICE, VOICES, KokoroCheckpoint
from sglang_omni.models.kokoro.languages import codes_of, language_of
from sglang_omni.models.kokoro.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.languages import language_name
from sglang_omni.preprocessing.request_params import RequestParams
from sglang_omni.proto.tasks import Granularity

_STAGES = "sglang_omni.models.kokoro.stages"
# Of the longest text that is spoken at once, about 40 s: the vocoder's rows, and cuDNN's and cuBLAS's own.
_WORKSPACE = 2048 * MIB


def stages() -> list[StageConfig]:
    return [
        StageConfig(name="preprocess", process="io", factory=f"{_STAGES}.create_preprocess", next="voice"),
        StageConfig(name="voice", process="voice", factory=f"{_STAGES}.create_voice", terminal=True),
    ]


class KokoroPipelineConfig(SpeechPipelineConfig):
    """Text in, speech out. ``model_path`` is a checkpoint in the published layout."""

    models: ClassVar[tuple[str, ...]] = ("voice",)
    terminal_modalities: ClassVar[dict[str, str]] = {"voice": "audio"}
    preload: ClassVar[tuple[str, ...]] = ("torch",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS
    voice_blends: ClassVar[bool] = True
    word_times: ClassVar[Granularity] = "word"

    name: str | None = "kokoro"
    stages: list[StageConfig] = Field(default_factory=stages)

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of its voices, the default first; none if the checkpoint cannot be read here."""
        folder = Path(self.model_path) / VOICES
        return KokoroCheckpoint.from_dir(self.model_path).voices if folder.is_dir() else (DEFAULT_VOICE,)

    @property
    def spoken_languages(self) -> tuple[str, ...]:
        return codes_of(self.voices)

    def defaults(self) -> Iterator[Default]:
        """How a text is spoken if a request says nothing of it."""
        checkpoint = KokoroCheckpoint.from_dir(self.model_path)
        named = DEFAULT_VOICE in checkpoint.voices
        yield first_voice(
            checkpoint.voices, "its authors' example" if named else f"the first of {VOICES}/*.pt"
        )
        own = language_of(checkpoint.voices[0], None)
        assert own is not None
        yield Default(
            "language",
            f"the voice's own, of the default voice {language_name(own.code[:2])}",
            "its authors' code",
        )

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What a stage wants of a GPU; ``config.memory`` asks."""
        if stage.name not in self.models:
            return None
        weights = sum(size.stored_bytes for size in tensor_sizes(self.model_path))
        return MemoryDemand(weights=weights, workspace=_WORKSPACE)

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """None takes less memory."""
        return iter(())


def default_config(model_path: str) -> KokoroPipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    return KokoroPipelineConfig.placed(model_path)
