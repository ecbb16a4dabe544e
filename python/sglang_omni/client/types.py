"""Requests, chunks and results of the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.proto import RequestError, StageTime


class ClientError(RuntimeError):
    """The service failed, or answered with something that is no answer.

    A request at fault raises :class:`sglang_omni.proto.RequestError` instead.

    Attributes:
        status: The HTTP status, where the failure came over HTTP.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Message:
    """One turn of a conversation; ``content`` is text or a list of OpenAI's content parts."""

    role: str
    content: Any

    def to_dict(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content}


@dataclass
class UsageInfo:
    """Token counts of a request; ``cached_tokens`` of the prompt came from a prefix cache."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None) -> UsageInfo | None:
        if not fields:
            return None
        prompt, completion = fields.get("prompt_tokens"), fields.get("completion_tokens")
        total = fields.get("total_tokens")
        if total is None and prompt is not None and completion is not None:
            total = prompt + completion
        details = fields.get("prompt_tokens_details") or {}
        return cls(prompt, completion, total, details.get("cached_tokens", fields.get("cached_tokens")))

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's ``usage``; counts that are not known are 0."""
        return {
            "prompt_tokens": self.prompt_tokens or 0,
            "completion_tokens": self.completion_tokens or 0,
            "total_tokens": self.total_tokens or 0,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens or 0},
        }


@dataclass
class SamplingParams:
    """How tokens are drawn. What is None is left to the model's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    max_new_tokens: int | None = None
    ignore_eos: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        return {
            name: value
            for name, value in vars(self).items()
            if not (value is None or value is False or value == [])  # 0 is a temperature
        }


@dataclass
class GenerateRequest:
    """What to generate. Exactly one of ``prompt``, ``prompt_token_ids``, ``messages`` and ``audio`` is set.

    Attributes:
        prompt: Text to continue, or to say where the task is speech; a dict reaches the pipeline as it is.
        messages: A conversation, as Message objects or OpenAI's message dicts.
        audio: An encoded audio file to transcribe.
        stage_sampling: Sampling of one stage, where it differs, by stage name.
        stage_params: One stage's own parameters, by stage name.
        extra_params: Further request parameters, such as ``voice``, ``speed`` or ``language``.
        stream: Whether ``generate`` yields parts as they come, or the whole result at once.
        max_tokens: The most new tokens; wins over ``sampling.max_new_tokens``.
        output_modalities: Of ``text`` and ``audio``; None leaves it to the task.
        metadata: What routing may look at and no model consumes. ``task`` is one of ``chat``,
            ``completion``, ``speech``, ``transcription`` and ``translation``; it follows from the input
            where it is not given.
        session_id: What requests of one conversation or user have in common. A stage with several workers
            gives them to the same one, and a router with the policy ``consistent_hash`` to the same replica.
        owner: Whose request it is, if one pipeline serves several callers that must not get at each other's
            requests: ids are those of one owner. A server tells its callers apart itself.
        timeout: Seconds until the request is aborted and ``TimeoutError`` raised.
        timings: Whether the result shall tell the seconds spent in each stage.
    """

    model: str | None = None
    prompt: str | dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[Message] | list[dict[str, Any]] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stage_sampling: dict[str, SamplingParams] | None = None
    stage_params: dict[str, dict[str, Any]] | None = None
    extra_params: dict[str, Any] = field(default_factory=dict)
    stream: bool = True
    max_tokens: int | None = None
    output_modalities: list[str] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    audio: bytes | None = None
    timeout: float | None = None
    timings: bool = False
    session_id: str | None = None
    owner: str | None = None

    @property
    def task(self) -> str:
        if "task" in self.metadata:
            return str(self.metadata["task"])
        if self.messages is not None:
            return "chat"
        return "transcription" if self.audio is not None else "completion"

    @property
    def message_dicts(self) -> list[dict[str, Any]]:
        return [m.to_dict() if isinstance(m, Message) else dict(m) for m in self.messages or ()]

    def check(self) -> None:
        """
        Raises:
            RequestError: Not exactly one input is set.
        """
        given = [name for name in _INPUTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(
                f"a request needs exactly one of {', '.join(_INPUTS)}; got {found}",
                code="invalid_value" if given else "missing_required_parameter",
            )


_INPUTS = ("prompt", "prompt_token_ids", "messages", "audio")


@dataclass
class TranscriptionSegment:
    """A stretch of a transcript; ``start`` and ``end`` in seconds."""

    start: float
    end: float
    text: str


@dataclass
class GenerateChunk:
    """A part of a result.

    Those before the last carry what is new. The last one carries the whole result, all the text and all the
    audio, and it alone has a ``finish_reason``: where a part of a stream says why its stage has finished,
    that is told with the whole result.

    Attributes:
        audio_data: Samples, float32 of shape (samples,) in [-1, 1], or what the stage gave.
        input_transcript: The transcript of the request's own audio.
        timings: Seconds of work and wait in each stage, in the order of the stages, on the last chunk of a
            request that asked for them.
        worker: The replica that served the request, where a router names it.
        audio_codes: The codec's codes of each frame of the audio, on the last chunk, where the model has any.
        result: On the last chunk, what the pipeline returned, as it is.
    """

    request_id: str
    text: str = ""
    modality: str = "text"
    audio_data: Any = None
    sample_rate: int | None = None
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    usage: UsageInfo | None = None
    stage_name: str | None = None
    input_transcript: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[TranscriptionSegment] = field(default_factory=list)
    timings: dict[str, StageTime] | None = None
    worker: str | None = None
    audio_codes: list[list[int]] = field(default_factory=list)
    result: Any = None


@dataclass
class CompletionAudio:
    """Spoken output: ``data`` is base64 in the format asked for."""

    id: str
    data: str
    transcript: str | None = None


@dataclass
class CompletionResult:
    """A whole completion."""

    request_id: str
    text: str
    audio: CompletionAudio | None = None
    finish_reason: str = "stop"
    usage: UsageInfo | None = None
    input_transcript: str | None = None
    token_ids: list[int] = field(default_factory=list)
    timings: dict[str, StageTime] | None = None
    worker: str | None = None
    audio_codes: list[list[int]] = field(default_factory=list)
    result: Any = None


@dataclass
class CompletionStreamChunk:
    """What is new in a streamed completion.

    Attributes:
        audio_b64: The next piece of one file in the format asked for, as base64.
        sample_rate: That file's, in Hz.
        token_ids: Of the text, where the pipeline tells them; of one that tells them only at the end, all
            are in the last chunk.
        audio_codes: On the last chunk, as in ``GenerateChunk``.
    """

    request_id: str
    text: str = ""
    modality: str = "text"
    audio_b64: str | None = None
    sample_rate: int | None = None
    finish_reason: str | None = None
    usage: UsageInfo | None = None
    stage_name: str | None = None
    input_transcript: str | None = None
    timings: dict[str, StageTime] | None = None
    worker: str | None = None
    token_ids: list[int] = field(default_factory=list)
    audio_codes: list[list[int]] = field(default_factory=list)


@dataclass
class SpeechResult:
    """Spoken text as an encoded file."""

    audio_bytes: bytes
    mime_type: str
    format: str
    sample_rate: int | None = None
    usage: UsageInfo | None = None
    timings: dict[str, StageTime] | None = None
    worker: str | None = None


@dataclass
class TranscriptionResult:
    """What was said in a recording; ``duration`` in seconds."""

    text: str
    language: str | None = None
    duration: float | None = None
    segments: list[TranscriptionSegment] = field(default_factory=list)
    timings: dict[str, StageTime] | None = None
    worker: str | None = None


@dataclass
class AbortResult:
    """Whether there was a running request to abort."""

    success: bool

    def __bool__(self) -> bool:
        return self.success
