"""The client's data types: requests, chunks and results."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sglang_omni.client.samples import Samples
from sglang_omni.proto import RequestError, StageTime


class ClientError(RuntimeError):
    """The service failed, or its answer cannot be read.

    If the request is at fault, :class:`sglang_omni.proto.RequestError` is raised instead.

    Attributes:
        status: The HTTP status, if the failure came over HTTP.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ServerUnreachable(ClientError):
    """No server listens at the base URL, or its name is unknown."""


@dataclass
class Message:
    """One turn of a conversation; ``content`` is text or a list of OpenAI's content parts."""

    role: str
    content: Any

    def to_dict(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content}


@dataclass
class UsageInfo:
    """Token counts of a request.

    Attributes:
        cached_tokens: The part of the prompt found in a prefix cache.
        reasoning_tokens: The part of the answer that is reasoning; None if it was not searched for any.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None) -> UsageInfo | None:
        if not fields:
            return None
        prompt, completion = fields.get("prompt_tokens"), fields.get("completion_tokens")
        total = fields.get("total_tokens")
        if total is None and prompt is not None and completion is not None:
            total = prompt + completion
        details = fields.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", fields.get("cached_tokens"))
        reasoning = (fields.get("completion_tokens_details") or {}).get("reasoning_tokens")
        return cls(prompt, completion, total, cached, reasoning)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's ``usage``; unknown counts are 0."""
        fields: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens or 0,
            "completion_tokens": self.completion_tokens or 0,
            "total_tokens": self.total_tokens or 0,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens or 0},
        }
        if self.reasoning_tokens is not None:
            fields["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return fields


@dataclass
class SamplingParams:
    """How tokens are drawn. None leaves a parameter at the model's default.

    Attributes:
        logit_bias: Added to the logits of tokens, by token id.
        logprobs: Tell each output token's log-probability, and those of this many of the likeliest tokens.
        prompt_logprobs: The same for the tokens of the prompt.
        json_schema: What the output must match, as JSON text. At most one of this and the next three is set.
        regex: The same, as a regular expression.
        ebnf: The same, as a grammar in GBNF.
        structural_tag: The same, as xgrammar's structural tag in JSON text.
    """

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
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        return {
            name: value
            for name, value in vars(self).items()
            if not (value is None or value is False or value == [] or value == {})  # a temperature may be 0
        }


@dataclass
class ToolCall:
    """A call of a tool that an answer asks for, or what a chunk adds to one.

    Attributes:
        index: Which of the answer's calls.
        id: None in a chunk that continues a call; so is ``name``.
        arguments: JSON text; of a chunk, the next piece of it.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


def join_tool_calls(whole: list[ToolCall], new: Iterable[ToolCall]) -> None:
    """Adds to ``whole`` what a chunk has of tool calls."""
    for call in new:
        told = next((other for other in whole if other.index == call.index), None)
        if told is None:
            whole.append(replace(call))
        else:
            told.arguments += call.arguments


@dataclass
class TokenLogprob:
    """A token and its natural log-probability, before temperature and penalties, as transformers' scores.

    Attributes:
        token: Its text; a broken character is shown as U+FFFD, and ``token_bytes`` has the bytes.
        logprob: None for a prompt's first token, which nothing predicts.
        top: The likeliest tokens at its place, the likeliest first; without ``top`` of their own.
    """

    token: str
    token_id: int
    logprob: float | None
    token_bytes: bytes = b""
    top: list[TokenLogprob] = field(default_factory=list)

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> TokenLogprob:
        """From ``{"token", "token_id", "logprob", "bytes", "top"}``, as stages report it."""
        return cls(
            fields["token"],
            fields["token_id"],
            fields["logprob"],
            bytes(fields.get("bytes") or b""),
            [cls.from_wire(other) for other in fields.get("top") or ()],
        )


@dataclass
class GenerateRequest:
    """A request. Exactly one of ``prompt``, ``prompt_token_ids``, ``messages`` and ``audio`` must be set.

    Attributes:
        prompt: Text to continue, or to speak if the task is speech; a dict reaches the pipeline as it is.
        messages: A conversation, as Message objects or OpenAI's message dicts.
        audio: An encoded audio file to transcribe.
        stage_sampling: Sampling parameters of single stages, by stage name.
        stage_params: Other parameters of single stages, by stage name.
        extra_params: Further request parameters, such as ``voice``, ``speed`` or ``language``.
        stream: Whether ``generate`` yields parts as they come, or the whole result at once.
        max_tokens: Limit of new tokens; overrides ``sampling.max_new_tokens``.
        output_modalities: Of ``text`` and ``audio``; None leaves it to the task.
        metadata: Data for routing, which no model reads. ``task`` is one of ``chat``, ``completion``,
            ``speech``, ``transcription`` and ``translation``; by default it follows from the input.
        session_id: Groups the requests of one conversation or user. A stage gives them to the same worker of
            its pool, and a router with the policy ``consistent_hash`` to the same server.
        owner: Separates the callers of one pipeline: a request id belongs to its owner, and no other caller
            can abort it. A server tells its callers apart itself.
        timeout: Seconds until the request is aborted and ``TimeoutError`` raised.
        timings: Whether the result tells the seconds spent in each stage.
        tools: OpenAI's tool objects, of which the answer may call some.
        tool_choice: OpenAI's: "auto", "none", "required", or an object that names one of the tools.
        parallel_tool_calls: Whether one answer may call several.
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
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True

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
class TranscriptionWord:
    """A word of a transcript; ``start`` and ``end`` in seconds."""

    word: str
    start: float
    end: float


@dataclass
class TranscriptionSegment:
    """A stretch of a transcript; ``start`` and ``end`` in seconds.

    Attributes:
        words: If the request wants them.
        seek: As in OpenAI's segments, and so are the fields after it; None if the model does not tell them.
    """

    start: float
    end: float
    text: str
    words: list[TranscriptionWord] = field(default_factory=list)
    seek: int | None = None
    tokens: list[int] | None = None
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TranscriptionSegment:
        """From a stage's or a server's segment; fields that it has beyond these are left out."""
        given = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        words = [TranscriptionWord(w["word"], w["start"], w["end"]) for w in fields.get("words") or ()]
        return cls(**given | {"words": words})


@dataclass
class GenerateChunk:
    """A part of a result.

    Each chunk carries what is new, except the last, which carries the whole result with all text and audio.
    The last chunk alone has a ``finish_reason``.

    Attributes:
        audio_data: Samples, float32 of shape (samples,) in [-1, 1], or in the stage's own type.
        spoken_text: The text that these samples speak, if the pipeline tells; not on the last chunk.
        input_transcript: The transcript of the request's own audio.
        timings: Seconds of work and wait in each stage, in the order of the stages, on the last chunk of a
            request that asked for them.
        worker: The server that answered, if a router names it.
        audio_codes: On the last chunk, the codec's codes of each audio frame, if the model has any.
        reasoning: What a thinking model writes before its answer, which ``text`` does not have.
        tool_calls: On the last chunk whole, before that what is new.
        logprobs: Of the tokens in ``token_ids``, if the request wants them.
        prompt_logprobs: Of the prompt's tokens, on the last chunk, if the request wants them.
        result: On the last chunk, the pipeline's unchanged result.
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
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    spoken_text: str = ""


@dataclass
class CompletionAudio:
    """Spoken output: ``data`` is base64 of a file in the requested format."""

    id: str
    data: str
    transcript: str | None = None

    @property
    def audio_bytes(self) -> bytes:
        """``data``, decoded: the file."""
        return base64.b64decode(self.data)


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
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass
class CompletionStreamChunk:
    """What is new in a streamed completion.

    Attributes:
        audio_b64: The next piece of one file in the requested format, as base64.
        sample_rate: Of that file, in Hz.
        audio_seconds: Length of the chunk's new sound, whatever of it is in ``audio_b64`` yet.
        token_ids: Of the text, if the pipeline tells them; all in the last chunk if it tells them only then.
        audio_codes: On the last chunk, the codec's codes of each audio frame, if the model has any.
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
    audio_seconds: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    audio_codes: list[list[int]] = field(default_factory=list)
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def audio_bytes(self) -> bytes:
        """``audio_b64``, decoded."""
        return base64.b64decode(self.audio_b64 or "")


@dataclass
class SpeechResult:
    """Spoken text as an encoded file; ``sample_rate`` in Hz."""

    audio_bytes: bytes
    mime_type: str
    format: str
    sample_rate: int | None = None
    usage: UsageInfo | None = None
    timings: dict[str, StageTime] | None = None
    worker: str | None = None
    finish_reason: str = "stop"


@dataclass
class TranscriptionResult:
    """The transcript of a recording; ``duration`` in seconds."""

    text: str
    language: str | None = None
    duration: float | None = None
    segments: list[TranscriptionSegment] = field(default_factory=list)
    timings: dict[str, StageTime] | None = None
    worker: str | None = None

    @property
    def words(self) -> list[TranscriptionWord]:
        """All words, if the request wants their times."""
        return [word for segment in self.segments for word in segment.words]


@dataclass
class AbortResult:
    """``success`` is true if there was a running request to abort."""

    success: bool

    def __bool__(self) -> bool:
        return self.success


@dataclass
class SpeechStreamChunk:
    """The next piece of a text that is being spoken.

    Attributes:
        samples: float32 of shape (samples,), from -1 to 1.
        sample_rate: In Hz.
    """

    request_id: str
    samples: Samples
    sample_rate: int


@dataclass
class ModelInfo:
    """A model that a server serves. What the server does not tell is None.

    Attributes:
        owned_by: Of a server of this package, ``sglang-omni``.
        tasks: Of ``chat``, ``completion``, ``speech``, ``transcription`` and ``translation``.
        input_modalities: Of ``text``, ``audio``, ``image`` and ``video``, as are ``output_modalities``.
    """

    id: str
    owned_by: str | None = None
    tasks: list[str] | None = None
    input_modalities: list[str] | None = None
    output_modalities: list[str] | None = None

    @classmethod
    def from_dict(cls, model: Mapping[str, Any], told: Mapping[str, Any]) -> ModelInfo:
        """From an entry of ``/v1/models`` and the whole of ``/get_model_info``."""
        names = ("tasks", "input_modalities", "output_modalities")
        return cls(str(model["id"]), model.get("owned_by"), *(told.get(name) for name in names))


@dataclass
class VoiceList:
    """The names that ``voice`` may have; ``languages`` is None if the server does not tell any."""

    voices: list[str]
    languages: list[str] | None = None
    model: str | None = None
