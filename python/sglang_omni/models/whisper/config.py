"""Whisper's pipeline: its stages and their processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import GENERATION, Default
from sglang_omni.config.schema.serves import ServesConfig
from sglang_omni.gpus import visible_gpus
from sglang_omni.models.whisper.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.whisper"


def whisper_stages() -> list[StageConfig]:
    """Two stages in two processes: checks take nothing from the thread that steps the decoder."""
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


class WhisperPipelineConfig(PipelineConfig):
    """Recordings in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout."""

    tasks: ClassVar[tuple[str, ...]] = ("transcription", "translation")
    input_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    stages: list[StageConfig] = Field(default_factory=whisper_stages)
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    def defaults(self) -> Iterator[Default]:
        """How a recording is heard if a request says nothing of it."""
        from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
        from sglang_omni.models.whisper.components.fallback import TEMPERATURES

        checkpoint = WhisperCheckpoint.from_dir(self.model_path)
        first, *others = (f"{temperature:g}" for temperature in TEMPERATURES)
        again = f"; while a text is doubtful, {', '.join(others)} in turn"
        falls_back = merge_factory_args(self.stage("transcribe"), self).get("fallback", True)
        yield Default(
            "sampling",
            f"temperature {first}{again if falls_back else ''}",
            "its authors' program" if falls_back else "--stage transcribe.fallback=false",
        )
        yield Default(
            "length",
            f"{checkpoint.max_length} tokens of each window, with its prompt",
            f"max_length of {GENERATION}",
        )
        tokens = checkpoint.tokens
        if tokens.default_language is not None:
            yield Default("language", tokens.default_language, f"forced_decoder_ids of {GENERATION}")
        elif checkpoint.multilingual:
            yield Default("language", f"the recording's, of {len(tokens.languages)}", "its authors' program")
        else:
            yield Default("language", "English, the only one", f"is_multilingual of {GENERATION}")

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What a stage wants of a GPU; ``config.memory`` asks."""
        if stage.name != "transcribe":
            return None
        # It brings torch, which the server's process needs for nothing else.
        from sglang_omni.models.whisper.memory import transcribe_demand

        return transcribe_demand(self.model_path, args)

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it: fewer recordings at once."""
        fewer = self.model_copy(deep=True)
        fewer.stage("transcribe").factory_args["max_running_requests"] = 4
        yield "--stage transcribe.max_running_requests=4", fewer


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one. One of English alone transcribes, and
    translates nothing."""
    config = WhisperPipelineConfig(model_path=model_path)
    if visible_gpus():
        config.stage("transcribe").gpu = 0
    file = Path(model_path) / "generation_config.json"
    if file.exists() and not json.loads(file.read_text(encoding="utf-8")).get("is_multilingual", True):
        config.serves = ServesConfig(tasks=["transcription"])
    return config
