"""The configuration of a session: what clients may set."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sglang_omni.serve.models.fields import Granularities
from sglang_omni.serve.realtime.fields import RealtimeModel
from sglang_omni.serve.realtime.sound import AudioFormat, Pcm
from sglang_omni.serve.realtime.turns import TurnDetection

Modality = Literal["text", "audio"]
Text = Annotated[str, Field(max_length=1_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
MaxTokens = Annotated[int, Field(ge=1, lt=2**31)] | Literal["inf"]
_SPOKEN: tuple[Modality, ...] = ("audio",)
# Fields that an update changes field by field.
MERGED = frozenset({"audio", "input", "output"})


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
    timestamp_granularities: Granularities | None = None
    """Which times come with the sound, in ``response.output_audio.words`` events: of ``word`` or ``sentence``
    the finer one that the model knows. An extension, of which other clients see nothing."""

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
    """What the session does: it answers, or only writes down what it hears."""
    model: Name | None = None
    """A served name, set when the session begins; another one later has no effect."""
    duplex: bool = False
    """True if the model listens while it speaks, from the first sound on and without turns
    (`turn_detection` is null). An extension, for models that can; those that can nothing else begin so."""
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
    """Answers may call, must call, must not call, or call one function."""
    parallel_tool_calls: bool = True
    """True if one answer may have several calls."""
    max_output_tokens: MaxTokens = "inf"
    """The most tokens of an answer."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 takes the likeliest token each time. Not among OpenAI's fields any more."""
    truncation: Literal["auto", "disabled"] = "auto"
    """True if the oldest items are left out of a prompt that would be too long."""
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
        if not self.duplex:
            del fields["duplex"]
        if self.audio.output.timestamp_granularities is None:
            del fields["audio"]["output"]["timestamp_granularities"]
        if self.type == "transcription":
            fields = {"type": "transcription", "audio": {"input": fields["audio"]["input"]}}
        return fields


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
