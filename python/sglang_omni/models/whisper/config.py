"""Whisper's pipeline: its stages and their processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import GENERATION, Default
from sglang_omni.config.schema.serves import ServesConfig
from sglang_omni.models.decoder.pipelines import two_stages
from sglang_omni.models.recordings.config import RecordingPipelineConfig
from sglang_omni.models.whisper.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams

_PACKAGE = "sglang_omni.models.whisper"


class WhisperPipelineConfig(RecordingPipelineConfig):
    """Recordings in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout."""

    package: ClassVar[str] = _PACKAGE
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS
    # Fewer recordings at once.
    smaller: ClassVar[tuple[str, float]] = ("max_running_requests", 4)
    tasks: ClassVar[tuple[str, ...]] = ("transcription", "translation")

    stages: list[StageConfig] = Field(default_factory=partial(two_stages, _PACKAGE, "transcribe"))

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


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one. One of English alone transcribes, and
    translates nothing."""
    config = WhisperPipelineConfig.default(model_path)
    file = Path(model_path) / "generation_config.json"
    if file.exists() and not json.loads(file.read_text(encoding="utf-8")).get("is_multilingual", True):
        config.serves = ServesConfig(tasks=["transcription"])
    return config
