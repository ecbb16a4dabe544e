"""Voxtral Realtime's pipeline: its stages and their processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import Default
from sglang_omni.models.decoder.pipelines import two_stages
from sglang_omni.models.recordings.config import RecordingPipelineConfig
from sglang_omni.models.voxtral_realtime.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.voxtral_realtime"


def _stages() -> list[StageConfig]:
    stages = two_stages(_PACKAGE, "transcribe")
    stages[-1].takes_input = True
    return stages


class VoxtralRealtimePipelineConfig(RecordingPipelineConfig):
    """Recordings in, or sound that comes; text out. ``model_path`` is the directory of a checkpoint in the
    hub's layout.
    """

    package: ClassVar[str] = _PACKAGE
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS
    smaller: ClassVar[tuple[str, float]] = ("max_running_requests", 4)

    stages: list[StageConfig] = Field(default_factory=_stages)

    def defaults(self) -> Iterator[Default]:
        """How a recording is heard if a request says nothing of it."""
        # They bring torch.
        from sglang_omni.models.recordings.recording import SAMPLE_RATE
        from sglang_omni.models.voxtral_realtime.components.checkpoint import VoxtralRealtimeCheckpoint
        from sglang_omni.models.voxtral_realtime.components.tekken import FILE, Tekken

        checkpoint = VoxtralRealtimeCheckpoint.from_dir(self.model_path)
        tekken = Tekken.from_dir(checkpoint.path)
        token = tekken.samples / SAMPLE_RATE
        context = checkpoint.text.max_position_embeddings
        yield Default("sampling", "temperature 0", "transformers' generation")
        yield Default("context", f"{context:,} tokens", "max_position_embeddings of config.json")
        yield Default("length", f"a token each {1000 * token:g} ms", f"frame_rate of {FILE}")
        yield Default("delay", f"{1000 * token * tekken.delay:g} ms", f"transcription_delay_ms of {FILE}")


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    return VoxtralRealtimePipelineConfig.default(model_path)
