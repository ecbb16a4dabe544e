"""CSM's pipeline: its stages and their processes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.models.csm.request_params import REQUEST_PARAMS, SPEAKERS
from sglang_omni.preprocessing.request_params import RequestParams

_STAGES, _SPEECH = "sglang_omni.models.csm.stages", "sglang_omni.models.frames.speech"
_CODEC = "sglang_omni.models.codecs.mimi_stages"


def speech_stages() -> list[StageConfig]:
    """A process for the decoders, one for the codec, and one for the stage that computes little."""
    return [
        StageConfig(
            name="preprocess",
            factory=f"{_STAGES}.create_preprocess",
            process="io",
            next=["reference", "speak", "code2wav"],
            route_fn=f"{_SPEECH}.after_preprocess",
            project_payload={"code2wav": f"{_SPEECH}.to_code2wav"},
        ),
        StageConfig(name="reference", factory=f"{_CODEC}.create_reference", process="codec", next="speak"),
        StageConfig(
            name="speak",
            factory=f"{_STAGES}.create_speak",
            process="speak",
            stream_to=["code2wav"],
            terminal=True,
        ),
        StageConfig(
            name="code2wav",
            factory=f"{_CODEC}.create_code2wav",
            process="codec",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


class CsmPipelineConfig(PipelineConfig):
    """Text in, speech out. ``model_path`` is a checkpoint in the layout of transformers' classes."""

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("speech",)
    input_modalities: ClassVar[tuple[str, ...]] = ("text",)
    output_modalities: ClassVar[tuple[str, ...]] = ("audio",)
    terminal_modalities: ClassVar[dict[str, str]] = {"code2wav": "audio"}
    voices: ClassVar[tuple[str, ...]] = SPEAKERS
    spoken_languages: ClassVar[tuple[str, ...]] = ("en",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    name: str | None = "csm"
    stages: list[StageConfig] = Field(default_factory=speech_stages)
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})
