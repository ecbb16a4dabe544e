"""Fish Audio S2-Pro's pipeline: its stages and their processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.weights import archive_identity
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default, first_voice, in_words
from sglang_omni.gpus import Gpu
from sglang_omni.models.fish_s2_pro.request_params import REQUEST_PARAMS
from sglang_omni.models.fish_s2_pro.voices import DEFAULT_VOICE, find_voices
from sglang_omni.models.frames.config import SpeechPipelineConfig, speech_stages
from sglang_omni.preprocessing.request_params import RequestParams

_STAGES = "sglang_omni.models.fish_s2_pro.stages"
_ROUTING = "sglang_omni.models.fish_s2_pro.routing"
# Some 48 s.
MAX_PASSAGE_FRAMES = 1024
CODEC_FILE = "codec.pth"
_MODELS = ("voice_encoder", "dual_ar", "codec")


class FishS2PipelineConfig(SpeechPipelineConfig):
    """Text in, speech out, in the model's voice or in that of a recording.

    ``model_path`` is a checkpoint in the published layout. ``dual_ar`` reports how the speech ended and what
    it took, ``codec`` has the sound.
    """

    terminal_modalities: ClassVar[dict[str, str]] = {"codec": "audio"}
    models: ClassVar[tuple[str, ...]] = _MODELS
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "fish-s2-pro"
    terminal_stages_fn: str | None = f"{_ROUTING}.terminal_stages"
    stages: list[StageConfig] = Field(
        default_factory=lambda: speech_stages(_STAGES, codec=_STAGES, names=_MODELS, routing=_ROUTING)
    )

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

    def voice_encoder(self) -> str:
        """What identifies the encoder of voices."""
        return archive_identity(Path(self.model_path) / CODEC_FILE)

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
    return FishS2PipelineConfig.placed(model_path, gpus)
