"""Qwen3-ASR's pipeline: its stages and their processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default
from sglang_omni.models.decoder.pipelines import two_stages
from sglang_omni.models.qwen3_asr.request_params import REQUEST_PARAMS
from sglang_omni.models.recordings.config import RecordingPipelineConfig
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.qwen3_asr"


class Qwen3ASRPipelineConfig(RecordingPipelineConfig):
    """Recordings in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout."""

    package: ClassVar[str] = _PACKAGE
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS
    # Shorter pieces.
    smaller: ClassVar[tuple[str, float]] = ("piece_seconds", 30)

    stages: list[StageConfig] = Field(default_factory=partial(two_stages, _PACKAGE, "transcribe"))

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


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    return Qwen3ASRPipelineConfig.default(model_path)
