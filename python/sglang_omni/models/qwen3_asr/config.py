"""Qwen3-ASR's pipeline: its stages and their processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default
from sglang_omni.gpus import visible_gpus
from sglang_omni.models.qwen3_asr.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.qwen3_asr"


def qwen3_asr_stages() -> list[StageConfig]:
    """Two stages in two processes: checks take nothing from the thread that steps the engine."""
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


class Qwen3ASRPipelineConfig(PipelineConfig):
    """Recordings in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout."""

    tasks: ClassVar[tuple[str, ...]] = ("transcription",)
    input_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    stages: list[StageConfig] = Field(default_factory=qwen3_asr_stages)
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    def defaults(self) -> Iterator[Default]:
        """How a recording is heard if a request says nothing of it."""
        # They bring torch.
        from sglang_omni.models.qwen3_asr.components.answer import LANGUAGES
        from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint
        from sglang_omni.models.qwen3_asr.recording_engine import SPARE_TOKENS, TOKENS_PER_SECOND

        context = Qwen3ASRCheckpoint.from_dir(self.model_path).text.max_position_embeddings
        yield Default("sampling", "temperature 0", "its authors' code")
        of_piece = f"{context:,} tokens of a piece and its text"
        yield Default("context", of_piece, "max_position_embeddings of config.json")
        most = f"{SPARE_TOKENS} tokens and {TOKENS_PER_SECOND} more for each second of a piece"
        yield Default("length", most, "more than people speak")
        yield Default("language", f"the recording's, of {len(LANGUAGES)}", "its authors' code")

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What a stage wants of a GPU; ``config.memory`` asks."""
        if stage.name != "transcribe":
            return None
        # They bring torch, which the server's process needs for nothing else.
        from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint
        from sglang_omni.models.qwen3_asr.memory import transcribe_demand

        return transcribe_demand(Qwen3ASRCheckpoint.from_dir(self.model_path), args)

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it: shorter pieces."""
        shorter = self.model_copy(deep=True)
        shorter.stage("transcribe").factory_args["piece_seconds"] = 30.0
        yield "--stage transcribe.piece_seconds=30", shorter


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    config = Qwen3ASRPipelineConfig(model_path=model_path)
    if visible_gpus():
        config.stage("transcribe").gpu = 0
    return config
