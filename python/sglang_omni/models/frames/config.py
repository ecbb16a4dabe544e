"""The pipeline of models that make speech frame by frame: its stages and their processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import GENERATION, Default, first_voice, of_two_sources
from sglang_omni.gpus import Gpu, visible_gpus
from sglang_omni.preprocessing.text import read_json

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig

MIMI_STAGES = "sglang_omni.models.codecs.mimi_stages"
_SPEECH = "sglang_omni.models.frames.speech"
_VOICES = "sglang_omni.models.frames.voices"
# The stage that answers with a voice to keep.
VOICE = "voice"


def speech_stages(
    factories: str,
    *,
    codec: str = MIMI_STAGES,
    names: tuple[str, str, str] = ("reference", "speak", "code2wav"),
    routing: str = _SPEECH,
    continues: bool = False,
) -> list[StageConfig]:
    """A process for the decoders, one for the codec's halves, and one for the stage that computes little.

    Args:
        factories: The module with the family's ``create_preprocess`` and ``create_speak``.
        codec: The module with its codec's ``create_reference`` and ``create_code2wav``.
        names: Of these stages, in the family's words, and of their factories after ``create_``.
        routing: The module with ``after_preprocess``, ``after_reference`` and ``to_code2wav``.
        continues: True if the codec decodes a recording's codes before the speech, which goes on after them.
    """
    reference, speak, code2wav = names
    to_code2wav = {code2wav: f"{routing}.to_{code2wav}"}
    after_reference: dict[str, Any] = {"next": [speak, VOICE]}
    if continues:
        after_reference = {"next": [speak, code2wav, VOICE], "project_payload": to_code2wav}
    return [
        StageConfig(
            name="preprocess",
            factory=f"{factories}.create_preprocess",
            process="io",
            next=list(names),
            route_fn=f"{routing}.after_preprocess",
            project_payload=to_code2wav,
        ),
        StageConfig(
            name=reference,
            factory=f"{codec}.create_{reference}",
            process="codec",
            route_fn=f"{routing}.after_reference",
            **after_reference,
        ),
        StageConfig(
            name=speak,
            factory=f"{factories}.create_{speak}",
            process=speak,
            stream_to=[code2wav],
            terminal=True,
        ),
        StageConfig(
            name=code2wav,
            factory=f"{codec}.create_{code2wav}",
            process="codec",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
        StageConfig(name=VOICE, factory=f"{_VOICES}.create_voice", process="codec", terminal=True),
    ]


class SpeechPipelineConfig(PipelineConfig):
    """Text in, speech out.

    Attributes:
        models: The stages that a GPU takes.
    """

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("speech",)
    input_modalities: ClassVar[tuple[str, ...]] = ("text",)
    output_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    terminal_modalities: ClassVar[dict[str, str]] = {"code2wav": "audio"}
    models: ClassVar[tuple[str, ...]] = ("reference", "speak", "code2wav")
    preload: ClassVar[tuple[str, ...]] = ("torch", "sglang_omni.engines.build")

    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    @classmethod
    def placed(cls, model_path: str, gpus: Sequence[Gpu] | None = None) -> Self:
        """The pipeline for a checkpoint, on the first GPU if there is one.

        Args:
            gpus: The GPUs to use; those of this machine if None.
        """
        config = cls.model_validate({"model_path": model_path})
        for gpu in (visible_gpus() if gpus is None else gpus)[:1]:
            for name in cls.models:
                config.stage(name).gpu = gpu.index
        return config


class FramesPipelineConfig(SpeechPipelineConfig):
    """Text in, speech out. ``model_path`` is a checkpoint in the layout of transformers' classes."""

    terminal_stages_fn: str | None = f"{_SPEECH}.terminal_stages"

    @property
    @abstractmethod
    def voices(self) -> tuple[str, ...]:
        """The names of its voices, the default first."""

    @property
    @abstractmethod
    def voice_source(self) -> str:
        """Who says what the first voice is."""

    @abstractmethod
    def speech_decoder(self) -> DecoderConfig:
        """The checkpoint's decoder over time."""

    @property
    @abstractmethod
    def speech_sampling(self) -> tuple[dict[str, Any], str]:
        """How codes are drawn, ``max_new_tokens`` of them at most; who says what the checkpoint does not."""

    def defaults(self) -> Iterator[Default]:
        """How a text is spoken if a request says nothing of it."""
        values, otherwise = self.speech_sampling
        stored = read_json(Path(self.model_path) / GENERATION)
        frames = {"length": values.pop("max_new_tokens")}
        yield from of_two_sources("sampling", values, stored, otherwise)
        yield from (
            replace(each, value=f"{frames['length']:,} frames")
            for each in of_two_sources("length", frames, {"length": stored.get("max_new_tokens")}, otherwise)
        )
        context = self.speech_decoder().max_position_embeddings
        yield Default(
            "context",
            f"{context:,} tokens and frames of a text and its speech",
            "max_position_embeddings of config.json",
        )
        yield first_voice(self.voices, self.voice_source)

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What a stage wants of a GPU; ``config.memory`` asks."""
        # It brings torch, which the server's process needs for nothing else.
        from sglang_omni.models.frames.memory import speech_demand

        return speech_demand(self.model_path, self.speech_decoder(), stage.name, args)

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it: fewer texts spoken at once."""
        fewer = self.model_copy(deep=True)
        fewer.stage("speak").factory_args["max_running_requests"] = 4
        yield "--stage speak.max_running_requests=4", fewer
