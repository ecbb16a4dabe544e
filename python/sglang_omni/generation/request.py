"""What a caller asks for, and how the stages of a pipeline read it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.proto.tasks import (
    ChatInputs,
    CompletionInputs,
    EncodedVoice,
    SoundInputs,
    SpeechInputs,
    TranscriptionInputs,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class Message:
    """One turn of a conversation; ``content`` is text or a list of OpenAI's content parts."""

    role: str
    content: Any

    def to_dict(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content}


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


class SoundStream(NamedTuple):
    """Sound that comes while its request runs.

    Attributes:
        sample_rate: In Hz.
        chunks: float32 of shape (n,), in [-1, 1], each of any length. Its failure is the request's.
    """

    sample_rate: int
    chunks: AsyncGenerator[NDArray[np.float32], None]


@dataclass
class GenerateRequest:
    """A request. Exactly one of its inputs must be set: ``prompt``, ``prompt_token_ids``, ``messages``,
    ``audio`` or ``sound``.

    Attributes:
        prompt: Text to continue, or to speak if the task is speech; a dict reaches the pipeline as it is.
        messages: A conversation, as Message objects or OpenAI's message dicts.
        audio: An encoded audio file to transcribe.
        sound: Sound to transcribe, or with the task ``duplex`` to answer, while it comes; streamed, by a
            coordinator in this process.
        stage_sampling: Sampling parameters of single stages, by stage name.
        stage_params: Other parameters of single stages, by stage name.
        extra_params: Further request parameters, such as ``voice``, ``speed`` or ``language``.
        stream: True if ``generate`` yields parts as they come, False for the whole answer at once.
        max_tokens: Limit of new tokens; overrides ``sampling.max_new_tokens``.
        output_modalities: Of ``text`` and ``audio``; None leaves it to the task.
        metadata: Data for routing, which no model reads. ``task`` is one of ``chat``, ``completion``,
            ``speech``, ``transcription``, ``translation`` and ``duplex``; by default it follows from the
            input.
        session_id: Groups the requests of one conversation or user. A stage gives them to the same worker of
            its pool, and a router with the policy ``consistent_hash`` to the same server.
        owner: Separates the callers of one pipeline: a request id belongs to its owner, and no other caller
            can abort it. A server tells its callers apart itself.
        timeout: Seconds until the request is aborted and ``TimeoutError`` raised.
        timings: True if the result has the seconds spent in each stage.
        stream_interval: How many tokens of text a part has, at least; the first one comes at once. Parts have
            more where the caller is behind.
        tools: OpenAI's tool objects, of which the answer may call some.
        tool_choice: OpenAI's: "auto", "none", "required", or an object that names one of the tools.
        parallel_tool_calls: True if one answer may call several.
        voice: A kept voice that speaks, for a pipeline in this process: a server sends the name of one.
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
    sound: SoundStream | None = None
    timeout: float | None = None
    timings: bool = False
    stream_interval: int = 1
    session_id: str | None = None
    owner: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    voice: EncodedVoice | None = None

    @property
    def task(self) -> str:
        if "task" in self.metadata:
            return str(self.metadata["task"])
        if self.messages is not None:
            return "chat"
        return "completion" if self.audio is None and self.sound is None else "transcription"

    @property
    def message_dicts(self) -> list[dict[str, Any]]:
        return [m.to_dict() if isinstance(m, Message) else dict(m) for m in self.messages or ()]

    def check(self) -> None:
        """
        Raises:
            RequestError: Not exactly one input is set, or sound comes to a request that is not streamed.
        """
        given = [name for name in _INPUTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(
                f"a request needs exactly one of {', '.join(_INPUTS)}; got {found}",
                code="invalid_value" if given else "missing_required_parameter",
            )
        if self.sound is not None and not self.stream:
            raise RequestError("sound that comes needs stream", param="stream", code="invalid_value")


_INPUTS = ("prompt", "prompt_token_ids", "messages", "audio", "sound")


class TranscriptionOptions(TypedDict, total=False):
    """What the request for a transcript may say beside its recording.

    Attributes:
        language: Of the speech, as a name or a code; None leaves it to the model.
        prompt: Text that came before, or words to expect.
        temperature: Above 0 the text is drawn, at 0 or None it is the likeliest.
        word_timestamps: True if segments have the times of their words.
        translate: True for a transcript in English.
        model, session_id, owner, timeout, timings: As the fields of ``GenerateRequest``.
    """

    language: str | None
    prompt: str | None
    temperature: float | None
    word_timestamps: bool
    translate: bool
    model: str | None
    session_id: str | None
    owner: str | None
    timeout: float | None
    timings: bool


_TRANSCRIPTION_PARAMS = ("language", "prompt", "temperature", "word_timestamps")


def transcription_request(
    audio: bytes, *, stream: bool = False, **options: Unpack[TranscriptionOptions]
) -> GenerateRequest:
    """The request for the transcript of an encoded audio file.

    Streamed (``Client.generate``), each chunk has the text and the segments that are new.

    Args:
        stream: True if the text comes in parts.
    """
    fields: dict[str, Any] = {**options}
    params = {name: fields.pop(name, None) for name in _TRANSCRIPTION_PARAMS}
    # A temperature of 0 is given.
    given = {name: value for name, value in params.items() if value is not None and value is not False}
    task = "translation" if fields.pop("translate", False) else "transcription"
    return GenerateRequest(
        audio=audio,
        stream=stream,
        extra_params=given,
        metadata={"task": task},
        **fields,
    )


def to_omni_request(request: GenerateRequest) -> OmniRequest:
    """The request as stages read it; exactly one of its inputs must be set."""
    task = request.task
    metadata = {"task": task, **request.metadata}
    if request.model:
        metadata.setdefault("model", request.model)
    if request.output_modalities is not None:
        metadata["output_modalities"] = list(request.output_modalities)
    else:
        metadata.setdefault("output_modalities", ["audio"] if task == "speech" else ["text"])
    if request.timeout is not None:
        metadata["timeout"] = request.timeout
    if request.session_id is not None:
        metadata["session_id"] = request.session_id
    if request.owner is not None:
        metadata["owner"] = request.owner
    return OmniRequest(inputs=_inputs(request, task), params=_params(request), metadata=metadata)


def _inputs(
    request: GenerateRequest, task: str
) -> ChatInputs | CompletionInputs | SoundInputs | SpeechInputs | TranscriptionInputs | dict[str, Any]:
    if isinstance(request.prompt, dict):
        return dict(request.prompt)
    if request.prompt is not None:
        if task == "speech":
            spoken = SpeechInputs(text=request.prompt)
            if request.voice is not None:
                spoken["voice"] = request.voice
            return spoken
        return CompletionInputs(prompt=request.prompt)
    if request.prompt_token_ids is not None:
        return CompletionInputs(prompt_token_ids=list(request.prompt_token_ids))
    if request.audio is not None:
        return TranscriptionInputs(audio=request.audio)
    if request.sound is not None:
        return SoundInputs(sample_rate=request.sound.sample_rate)
    chat = ChatInputs(messages=request.message_dicts)
    if request.voice is not None:
        chat["voice"] = request.voice
    return chat


def _params(request: GenerateRequest) -> dict[str, Any]:
    params = request.sampling.to_dict()
    if request.max_tokens is not None:
        params["max_new_tokens"] = request.max_tokens
    stages: dict[str, dict[str, Any]] = {
        stage: sampling.to_dict() for stage, sampling in (request.stage_sampling or {}).items()
    }
    for stage, own in (request.stage_params or {}).items():
        stages[stage] = {**stages.get(stage, {}), **own}
    if stages:
        params["stage_params"] = stages
    params["stream"] = request.stream
    if request.tools:
        params["tools"] = request.tools
        params["parallel_tool_calls"] = request.parallel_tool_calls
    if request.tool_choice is not None:
        params["tool_choice"] = request.tool_choice
    return {**params, **request.extra_params}
