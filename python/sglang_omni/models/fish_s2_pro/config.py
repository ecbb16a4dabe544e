"""Fish Audio S2-Pro's pipeline: its stages and their processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default, first_voice, in_words
from sglang_omni.gpus import Gpu, visible_gpus
from sglang_omni.models.fish_s2_pro.request_params import REQUEST_PARAMS
from sglang_omni.models.fish_s2_pro.voices import DEFAULT_VOICE, find_voices
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.fish_s2_pro"
# Some 48 s.
MAX_PASSAGE_FRAMES = 1024
_MODELS = ("voice_encoder", "dual_ar", "codec")


def speech_stages() -> list[StageConfig]:
    """The decoders have a process of their own; the codec's two halves share one."""
    return [
        StageConfig(
            name="preprocess",
            factory=f"{_PACKAGE}.stages.create_preprocess",
            process="io",
            next=["voice_encoder", "dual_ar", "codec"],
            route_fn=f"{_PACKAGE}.routing.after_preprocess",
            project_payload={"codec": f"{_PACKAGE}.routing.to_codec"},
        ),
        StageConfig(
            name="voice_encoder",
            factory=f"{_PACKAGE}.stages.create_voice_encoder",
            process="codec",
            next="dual_ar",
        ),
        StageConfig(
            name="dual_ar",
            factory=f"{_PACKAGE}.stages.create_dual_ar",
            process="dual_ar",
            terminal=True,
            stream_to=["codec"],
        ),
        StageConfig(
            name="codec",
            factory=f"{_PACKAGE}.stages.create_codec",
            process="codec",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


class FishS2PipelineConfig(PipelineConfig):
    """Text in, speech out, in the model's voice or in that of a recording.

    ``model_path`` is a checkpoint in the published layout. ``dual_ar`` tells how the speech ended and what it
    took, ``codec`` has the sound.
    """

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("speech",)
    input_modalities: ClassVar[tuple[str, ...]] = ("text",)
    output_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    terminal_modalities: ClassVar[dict[str, str]] = {"codec": "audio"}
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "fish-s2-pro"
    stages: list[StageConfig] = Field(default_factory=speech_stages)
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    @property
    def voices(self) -> tuple[str, ...]:
        """The model's own choice, and the recordings in ``preprocess.voices_dir``."""
        folder = merge_factory_args(self.stage("preprocess"), self).get("voices_dir")
        return (DEFAULT_VOICE, *(find_voices(folder) if folder else ()))

    def defaults(self) -> Iterator[Default]:
        """How a text is spoken if a request says nothing of it."""
        # They bring torch.
        from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
        from sglang_omni.models.fish_s2_pro.dual_ar import DEFAULTS

        args = merge_factory_args(self.stage("dual_ar"), self)
        yield Default("sampling", in_words(DEFAULTS), "its authors' code")
        most = args.get("max_passage_frames") or MAX_PASSAGE_FRAMES
        yield Default("length", f"{most:,} frames of each passage", "max_passage_frames of the stage dual_ar")
        context = FishS2Checkpoint.from_dir(self.model_path).slow.max_position_embeddings
        spoken = f"{context:,} tokens and frames of a passage and its speech"
        yield Default("context", spoken, "max_seq_len of config.json")
        yield first_voice(self.voices, "the model makes it up")

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What a stage wants of a GPU; ``config.memory`` asks."""
        from sglang_omni.models.fish_s2_pro.memory import stage_demand

        return stage_demand(self.model_path, stage.name, args)

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it: there is none."""
        yield from ()


def default_config(model_path: str, gpus: Sequence[Gpu] | None = None) -> PipelineConfig:
    """The pipeline, on the first GPU if there is any.

    ``sglang_omni.config.fit_memory`` then gives the stages their shares of its memory.

    Args:
        model_path: Directory of a checkpoint.
        gpus: The GPUs to use; those of this machine if None.
    """
    config = FishS2PipelineConfig(model_path=model_path)
    found = visible_gpus() if gpus is None else gpus
    if found:
        for stage in config.stages:
            if stage.name in _MODELS:
                stage.gpu = found[0].index
    return config
