"""The configuration of a session: what clients may set, and what the pipeline behind it can do of that."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sglang_omni.client import RequestError
from sglang_omni.serve.api.constraints import spelled
from sglang_omni.serve.api.state import AppState
from sglang_omni.serve.realtime.detectors import create_detector
from sglang_omni.serve.realtime.events import validated
from sglang_omni.serve.realtime.fields import RealtimeModel
from sglang_omni.serve.realtime.smart_turn import smart_turn_file
from sglang_omni.serve.realtime.sound import AudioFormat, Pcm
from sglang_omni.serve.realtime.turns import SemanticVad, ServerVad, TurnDetection

Modality = Literal["text", "audio"]
Text = Annotated[str, Field(max_length=1_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
MaxTokens = Annotated[int, Field(ge=1, lt=2**31)] | Literal["inf"]
# Fields that null switches off; in others it counts as left out.
_SWITCHED_OFF = {"turn_detection", "transcription", "noise_reduction", "voice", "temperature"}
# How long a silence ends a turn where semantic_vad was asked for and Smart Turn is not installed, in ms.
_SILENCE_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
_NO_EFFECT = "of no effect here"
_SPOKEN: tuple[Modality, ...] = ("audio",)
# Fields that an update changes field by field.
MERGED = frozenset({"audio", "input", "output"})
# The session's fields by the names that stages know.
_SPELLING = {
    "voice": "session.audio.output.voice",
    "speed": "session.audio.output.speed",
    "max_new_tokens": "session.max_output_tokens",
    "language": "session.audio.input.transcription.language",
    "prompt": "session.audio.input.transcription.prompt",
    **{name: f"session.{name}" for name in ("temperature", "tools", "tool_choice", "parallel_tool_calls")},
}


class Transcription(RealtimeModel):
    """How input audio is written down for the client. The pipeline's own recognizer does it."""

    model: Name | None = None
    """Any: the pipeline's own recognizer writes, and ``session.updated`` names it."""
    language: Name | None = None
    """What is spoken: a code or a name."""
    prompt: Annotated[str, Field(max_length=4096)] | None = None
    """Words to expect."""


class HeardAudio(RealtimeModel):
    format: AudioFormat = Field(default_factory=Pcm)
    """How input sound is encoded."""
    transcription: Transcription | None = None
    """How what is heard is written down for the client; null: it is not."""
    noise_reduction: dict[str, Any] | None = None
    """Of no effect, which `warnings` of `session.updated` say; it is null there."""
    turn_detection: TurnDetection | None = None
    """How the server tells that a speaker begins and ends; null leaves it to the client. Without Smart Turn
    `semantic_vad` is `server_vad` with longer pauses, which `session.updated` then names."""


class VoiceId(RealtimeModel):
    id: Name
    """The voice's name."""


class OutputAudio(RealtimeModel):
    format: AudioFormat = Field(default_factory=Pcm)
    """How the sound of answers is encoded."""
    voice: Name | VoiceId | None = None
    """A name of ``/v1/audio/voices``, or ``{"id": name}``."""
    speed: Annotated[float, Field(ge=0.25, le=1.5)] = 1.0
    """Times the voice's own pace."""

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


class Audio(RealtimeModel):
    input: HeardAudio = Field(default_factory=HeardAudio)
    """What the client sends."""
    output: OutputAudio = Field(default_factory=OutputAudio)
    """What the client hears."""


class RealtimeTool(RealtimeModel):
    type: Literal["function"] = "function"
    name: Name
    """What the model calls it by."""
    description: Text | None = None
    """What it does, for the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of its arguments."""

    def as_chat_tool(self) -> dict[str, Any]:
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {
            "type": "function",
            "function": {name: value for name, value in fields.items() if value is not None},
        }


class ChosenFunction(RealtimeModel):
    type: Literal["function"]
    name: Name
    """The function that must be called."""


Tools = Annotated[list[RealtimeTool], Field(max_length=128)]
ToolChoice = Literal["auto", "none", "required"] | ChosenFunction


class SessionConfig(RealtimeModel):
    """What a session does; an update changes the fields that it has."""

    type: Literal["realtime", "transcription"] = "realtime"
    """Whether the session answers, or only writes down what it hears."""
    model: Name | None = None
    """A served name, set when the session begins; another one later has no effect."""
    instructions: Text = ""
    """A system message before the conversation."""
    output_modalities: Annotated[list[Modality], Field(min_length=1, max_length=1)] = Field(
        default_factory=lambda: list(_SPOKEN)
    )
    """What an answer is: text, or sound with its transcript."""
    audio: Audio = Field(default_factory=Audio)
    """How sound is sent, heard and written down."""
    tools: Tools = Field(default_factory=list)
    """Functions that answers may call."""
    tool_choice: ToolChoice = "auto"
    """Whether answers may call, must call, must not call, or call one function."""
    parallel_tool_calls: bool = True
    """Whether one answer may have several calls."""
    max_output_tokens: MaxTokens = "inf"
    """The most tokens of an answer."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 takes the likeliest token each time. Not among OpenAI's fields any more."""
    truncation: Literal["auto", "disabled"] = "auto"
    """Whether the oldest items are left out of a prompt that would be too long."""
    include: Annotated[list[str], Field(max_length=0)] | None = None
    """Only empty."""
    prompt: None = None
    """Only null."""
    tracing: Literal["auto"] | dict[str, Any] | None = None
    """Of no effect, as `noise_reduction`."""
    reasoning: dict[str, Any] | None = None
    """Of no effect, as `noise_reduction`."""

    @property
    def is_spoken(self) -> bool:
        return self.output_modalities == ["audio"]

    def shown(self) -> dict[str, Any]:
        """As events show it."""
        fields = self.model_dump()
        if self.type == "transcription":
            fields = {"type": "transcription", "audio": {"input": fields["audio"]["input"]}}
        return fields


def default_config(server: AppState, model: str, kind: Literal["realtime", "transcription"]) -> SessionConfig:
    """What a session begins with: sound if the pipeline speaks, and turns by voice activity if it hears.

    Raises:
        RequestError: The pipeline does nothing of the kind.
    """
    abilities = server.capabilities
    hears = abilities.input_modalities is None or "audio" in abilities.input_modalities
    speaks = abilities.output_modalities is None or "audio" in abilities.output_modalities
    config = SessionConfig(type=kind, model=model, output_modalities=["audio" if speaks else "text"])
    if hears:
        config.audio.input.turn_detection = _default_turns()
    if kind == "transcription":
        config.audio.input.transcription = Transcription()
    check_config(config, server)
    return config


def updated(
    config: SessionConfig, update: dict[str, Any], server: AppState, prefix: str = "session."
) -> SessionConfig:
    """The configuration with the fields of an update; ``config`` stays as it is.

    Args:
        prefix: Of the fields' names in errors.

    Raises:
        RequestError: A field is unknown, wrong, or beyond the pipeline.
    """
    merged = _merged(config.model_dump(), update)
    new = validated(SessionConfig, merged, prefix)
    if new.model != config.model:
        server.check_model(new.model)
    if (transcription := new.audio.input.transcription) is not None:
        transcription.model = server.served_name
    check_config(new, server)
    return new


def _merged(old: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for name, value in update.items():
        if name in MERGED and isinstance(value, dict) and isinstance(old.get(name), dict):
            result[name] = _merged(old[name], value)
        elif value is not None or name in _SWITCHED_OFF or name not in old:
            result[name] = value
    return result


def check_config(config: SessionConfig, server: AppState) -> None:
    """Puts what is in force into ``config``, so that ``session.updated`` says it: the voice that speaks, the
    turn detection there is, and nothing that has no effect.

    Raises:
        RequestError: The pipeline cannot do what the configuration asks for.
    """
    heard = config.audio.input
    if heard.noise_reduction is not None:
        server.ignore("session.audio.input.noise_reduction", _NO_EFFECT)
        heard.noise_reduction = None
    if config.tracing is not None:
        server.ignore("session.tracing", _NO_EFFECT)
        config.tracing = None
    if config.reasoning is not None:
        server.ignore("session.reasoning", _NO_EFFECT)
        config.reasoning = None
    if heard.turn_detection is not None:
        server.check_input("audio", "session.audio.input.turn_detection")
        heard.turn_detection = _turns_in_force(heard.turn_detection, server)
        create_detector(heard.turn_detection)
    if heard.transcription is not None:
        server.check_task("transcription", "session.audio.input.transcription")
        with spelled(_SPELLING):
            server.check_params("transcription", transcription_params(heard.transcription), None)
    if config.type == "transcription":
        if heard.transcription is None:
            raise RequestError(
                "session.audio.input.transcription: a transcription session needs one",
                param="session.audio.input.transcription",
                code="missing_required_parameter",
            )
        return
    server.check_task("chat")
    server.check_output(config.output_modalities[0], "session.output_modalities")
    if config.is_spoken:
        output = config.audio.output
        voice = server.check_voice(output.voice_name, "session.audio.output.voice")
        if voice != output.voice_name:
            output.voice = voice
    with spelled(_SPELLING):
        server.check_params("chat", chat_params(config), None, spoken=config.is_spoken)


def chat_params(config: SessionConfig) -> dict[str, Any]:
    """The parameters of a response, by the names that stages know them by; only those that are set."""
    params: dict[str, Any] = {}
    if config.temperature is not None:
        params["temperature"] = config.temperature
    if config.max_output_tokens != "inf":
        params["max_new_tokens"] = config.max_output_tokens
    if config.is_spoken:
        if (voice := config.audio.output.voice_name) is not None:
            params["voice"] = voice
        if config.audio.output.speed != 1.0:
            params["speed"] = config.audio.output.speed
    if config.tools:
        params["tools"] = [tool.as_chat_tool() for tool in config.tools]
        params["parallel_tool_calls"] = config.parallel_tool_calls
        params["tool_choice"] = (
            {"type": "function", "function": {"name": config.tool_choice.name}}
            if isinstance(config.tool_choice, ChosenFunction)
            else config.tool_choice
        )
    return params


def transcription_params(settings: Transcription) -> dict[str, Any]:
    """The parameters of a transcription; only those that are set."""
    params = {"language": settings.language, "prompt": settings.prompt}
    return {name: value for name, value in params.items() if value}


def _turns_in_force(asked: TurnDetection, server: AppState) -> TurnDetection:
    """What is asked for, or turns by silence if that needs a model that is not installed."""
    if not isinstance(asked, SemanticVad):
        return asked
    try:
        smart_turn_file()
    except ImportError as exc:
        silence_ms = _SILENCE_MS[asked.eagerness]
        server.ignore(
            "session.audio.input.turn_detection",
            str(exc),
            f"server_vad is in force, and a silence of {silence_ms} ms ends a turn",
        )
        return ServerVad(
            silence_duration_ms=silence_ms,
            create_response=asked.create_response,
            interrupt_response=asked.interrupt_response,
        )
    return asked


def _default_turns() -> ServerVad | None:
    """OpenAI's default, if there is a detector."""
    settings = ServerVad()
    try:
        create_detector(settings)
    except RequestError:
        return None
    return settings
