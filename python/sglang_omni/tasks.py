"""A pipeline's view of its requests and answers: for functions that are served.

A stage's function reads its request with ``of`` and returns one of the results, or yields chunks::

    def answer(payload):
        request = ChatRequest.of(payload)
        return TextResult(text=f"You said: {request.text}")
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.messages import MediaPart, parse_messages
from sglang_omni.preprocessing.request import named_inputs, output_modalities, task_of, wants_stream
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.proto.tasks import (
    AudioChunk,
    AudioResult,
    EncodedVoice,
    SpokenWord,
    Task,
    TextChunk,
    TextResult,
    TokenUsage,
    Transcript,
    TranscriptPiece,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "AudioChunk",
    "AudioResult",
    "ChatRequest",
    "ChatTurn",
    "SpeechRequest",
    "SpokenWord",
    "TextChunk",
    "TextRequest",
    "TextResult",
    "TokenUsage",
    "Transcript",
    "TranscriptPiece",
    "TranscriptionRequest",
    "task_of",
]

_MAX_MEDIA_BYTES = 64_000_000


@dataclass(frozen=True)
class _TaskRequest:
    """What the requests of all tasks have.

    Attributes:
        request_id: The request's id.
        params: All parameters of the request, by the names that stages know: ``max_new_tokens``,
            ``temperature``, ``voice``, ...
        modalities: ``"text"`` and ``"audio"``: in which of them the caller wants the answer.
        stream: True if the caller takes chunks.
    """

    request_id: str
    params: Mapping[str, Any] = field(repr=False)
    modalities: tuple[str, ...]
    stream: bool

    @classmethod
    def _of(cls, payload: StagePayload, **fields: Any) -> Self:
        request = payload.request
        return cls(
            request_id=payload.request_id,
            params=request.params,
            modalities=tuple(output_modalities(request)),
            stream=wants_stream(request),
            **fields,
        )


class ChatTurn(NamedTuple):
    """A message of a conversation.

    Attributes:
        role: ``"system"``, ``"user"``, ``"assistant"`` or ``"tool"``.
        text: Its text, the parts of it on lines of their own.
        media: Its pictures, recordings and videos, encoded as they were sent.
    """

    role: str
    text: str
    media: tuple[MediaPart, ...] = ()


@dataclass(frozen=True)
class ChatRequest(_TaskRequest):
    """A conversation, from ``/v1/chat/completions``, the page or ``/v1/realtime``.

    Attributes:
        turns: All messages, the oldest first.
    """

    turns: tuple[ChatTurn, ...]

    @classmethod
    def of(cls, payload: StagePayload) -> Self:
        """
        Raises:
            RequestError: The request is of another task, or its messages are malformed.
        """
        inputs = _inputs(payload.request, ("chat",), ("messages",))
        messages, media = parse_messages(inputs.get("messages"), ("audio", "image", "video"))
        turns = tuple(
            ChatTurn(
                message["role"],
                "\n".join(part for part in message["content"] if isinstance(part, str)),
                tuple(media[part] for part in message["content"] if isinstance(part, int)),
            )
            for message in messages
        )
        return cls._of(payload, turns=turns)

    @property
    def last(self) -> ChatTurn:
        """The message to answer: the user's last; if there is none, the last of all."""
        return next((turn for turn in reversed(self.turns) if turn.role == "user"), self.turns[-1])

    @property
    def text(self) -> str:
        """The text of ``last``."""
        return self.last.text

    def samples(self, sample_rate: int = 16_000, *, max_seconds: float = 300.0) -> list[NDArray[np.float32]]:
        """The recordings of ``last``, decoded.

        Args:
            sample_rate: Hz.
            max_seconds: The longest recording that is accepted.

        Returns:
            float32 arrays of shape (n,), in [-1, 1].

        Raises:
            RequestError: A recording cannot be decoded, is too long, or is a URL.
        """
        return [
            _decoded(part.source, part.param, sample_rate, max_seconds)
            for part in self.last.media
            if part.kind == "audio"
        ]


@dataclass(frozen=True)
class TextRequest(_TaskRequest):
    """A text to continue, from ``/v1/completions`` or ``/generate``.

    Attributes:
        prompt: The text, or its token ids if the caller sent those.
    """

    prompt: str | list[int]

    @classmethod
    def of(cls, payload: StagePayload) -> Self:
        """
        Raises:
            RequestError: The request is of another task.
        """
        inputs = _inputs(payload.request, ("completion",), ("prompt", "prompt_token_ids"))
        prompt = inputs.get("prompt")
        prompt = inputs.get("prompt_token_ids") if prompt is None else prompt
        return cls._of(payload, prompt=_given(prompt, (str, list), "prompt", "text or token ids"))


@dataclass(frozen=True)
class SpeechRequest(_TaskRequest):
    """A text to speak, from ``/v1/audio/speech``.

    Attributes:
        voice: The voice's name; None for the pipeline's own choice.
        encoded_voice: The kept voice in its place, of a pipeline that keeps any.
        speed: 1.0 is the voice's own.
    """

    text: str
    voice: str | None
    speed: float
    encoded_voice: EncodedVoice | None = None

    @classmethod
    def of(cls, payload: StagePayload) -> Self:
        """
        Raises:
            RequestError: The request is of another task.
        """
        inputs = _inputs(payload.request, ("speech",), ("text", "voice"))
        params = payload.request.params
        speed = params.get("speed")
        return cls._of(
            payload,
            text=_given(inputs.get("text"), (str,), "input", "text"),
            voice=params.get("voice"),
            speed=1.0 if speed is None else float(speed),
            encoded_voice=inputs.get("voice"),
        )


@dataclass(frozen=True)
class TranscriptionRequest(_TaskRequest):
    """A recording to write down, from ``/v1/audio/transcriptions`` or ``/v1/audio/translations``.

    Attributes:
        audio: The file as it was sent, in any common format.
        language: Of the speech, as the caller named it; None if it is not told.
        prompt: Text that came before, or words to expect; None if there is none.
        translate: True if the transcript must be in English.
    """

    audio: bytes = field(repr=False)
    language: str | None
    prompt: str | None
    translate: bool

    @classmethod
    def of(cls, payload: StagePayload) -> Self:
        """
        Raises:
            RequestError: The request is of another task.
        """
        inputs = _inputs(payload.request, ("transcription", "translation"), ("audio",))
        params = payload.request.params
        return cls._of(
            payload,
            audio=_given(inputs.get("audio"), (bytes, bytearray, memoryview), "file", "a file"),
            language=params.get("language"),
            prompt=params.get("prompt"),
            translate=task_of(payload.request) == "translation",
        )

    def samples(self, sample_rate: int = 16_000, *, max_seconds: float = 14_400.0) -> NDArray[np.float32]:
        """The recording, decoded: float32 of shape (n,), in [-1, 1].

        Args:
            sample_rate: Hz.
            max_seconds: The longest recording that is accepted.

        Raises:
            RequestError: It cannot be decoded, or is too long.
        """
        return _decoded(self.audio, "file", sample_rate, max_seconds)


def _inputs(request: OmniRequest, tasks: tuple[Task, ...], names: Collection[str]) -> Mapping[str, Any]:
    task = task_of(request)
    if task not in tasks:
        answers = " and ".join(tasks)
        raise RequestError(
            f"this pipeline does {answers}, and not {task}; with serves: {{tasks: [{', '.join(tasks)}]}} in "
            "its config, the server says so by itself",
            code="unsupported_task",
        )
    return named_inputs(request, names)


def _given(value: Any, kinds: tuple[type, ...], param: str, expected: str) -> Any:
    if not isinstance(value, kinds):
        raise RequestError(
            f"{param}: {expected} is needed, got {type(value).__name__}", param=param, code="invalid_type"
        )
    return value


def _decoded(source: str | bytes, param: str, sample_rate: int, max_seconds: float) -> NDArray[np.float32]:
    # Decoders take a while to import, and not every pipeline hears.
    from sglang_omni.preprocessing.audio import decode_audio

    data = media_bytes(source, param=param, max_bytes=_MAX_MEDIA_BYTES)
    return decode_audio(data, param=param, sample_rate=sample_rate, max_seconds=max_seconds).samples
