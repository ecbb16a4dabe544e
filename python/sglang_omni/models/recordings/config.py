"""The pipeline of a recognizer of speech: its stages and their processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import Field

from sglang_omni.config.imports import import_string
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.gpus import visible_gpus
from sglang_omni.preprocessing.request_params import RequestParams


class RecordingPipelineConfig(PipelineConfig):
    """Recordings in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout.

    Attributes:
        package: The family's, with what its ``transcribe`` stage takes of a GPU in ``memory``.
        request_params: The parameters of each task.
        smaller: The name of an argument of the ``transcribe`` stage, and a value with which it takes less
            memory.
    """

    package: ClassVar[str]
    request_params: ClassVar[RequestParams]
    smaller: ClassVar[tuple[str, float]]

    tasks: ClassVar[tuple[str, ...]] = ("transcription",)
    input_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)

    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    @classmethod
    def default(cls, model_path: str) -> Self:
        """The pipeline for a checkpoint, on the first GPU if there is one."""
        # Every subclass has stages.
        config = cls(model_path=model_path)  # type: ignore[call-arg]
        if visible_gpus():
            config.stage("transcribe").gpu = 0
        return config

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What a stage wants of a GPU; ``config.memory`` asks."""
        if stage.name != "transcribe":
            return None
        # It brings torch, which the server's process needs for nothing else.
        transcribe_demand = import_string(f"{self.package}.memory.transcribe_demand")
        demand: MemoryDemand = transcribe_demand(self.model_path, args)
        return demand

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it."""
        name, value = self.smaller
        variant = self.model_copy(deep=True)
        variant.stage("transcribe").factory_args[name] = value
        yield f"--stage transcribe.{name}={value:g}", variant
