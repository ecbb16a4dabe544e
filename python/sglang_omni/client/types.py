"""The client's data types: requests, chunks and results."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_omni.generation.answer import AnswerFields, GenerateChunk
from sglang_omni.generation.errors import ClientError
from sglang_omni.generation.fields import (
    TokenLogprob,
    ToolCall,
    TranscriptionSegment,
    TranscriptionWord,
    UsageInfo,
)
from sglang_omni.generation.request import GenerateRequest, Message, SamplingParams
from sglang_omni.generation.results import (
    CompletionAudio,
    CompletionResult,
    SpeechResult,
    TranscriptionResult,
)
from sglang_omni.generation.samples import Samples

__all__ = [
    "AbortResult",
    "ClientError",
    "CompletionAudio",
    "CompletionResult",
    "CompletionStreamChunk",
    "GenerateChunk",
    "GenerateRequest",
    "Message",
    "ModelInfo",
    "SamplingParams",
    "ServerUnreachable",
    "SpeechResult",
    "SpeechStreamChunk",
    "TokenLogprob",
    "ToolCall",
    "TranscriptionResult",
    "TranscriptionSegment",
    "TranscriptionWord",
    "UsageInfo",
    "VoiceList",
]


class ServerUnreachable(ClientError):
    """No server listens at the base URL, or its name is unknown."""


@dataclass
class CompletionStreamChunk(AnswerFields):
    """What is new in a streamed completion.

    Attributes:
        audio_b64: The next piece of one file in the requested format, as base64.
        sample_rate: Of that file, in Hz.
        audio_seconds: Length of the chunk's new sound, whatever of it is in ``audio_b64`` yet.
        token_ids: Of the text, if the pipeline sends them; all in the last chunk if it sends them only then.
    """

    request_id: str
    text: str = ""
    modality: str = "text"
    audio_b64: str | None = None
    sample_rate: int | None = None
    finish_reason: str | None = None
    usage: UsageInfo | None = None
    stage_name: str | None = None
    audio_seconds: float = 0.0

    @property
    def audio_bytes(self) -> bytes:
        """``audio_b64``, decoded."""
        return base64.b64decode(self.audio_b64 or "")


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
    """A model that a server serves. What the server does not send is None.

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
    def from_dict(cls, model: Mapping[str, Any], facts: Mapping[str, Any]) -> ModelInfo:
        """From an entry of ``/v1/models`` and the whole of ``/get_model_info``."""
        names = ("tasks", "input_modalities", "output_modalities")
        return cls(str(model["id"]), model.get("owned_by"), *(facts.get(name) for name in names))


@dataclass
class VoiceList:
    """The names that ``voice`` may have; ``languages`` is None if the server does not send any."""

    voices: list[str]
    languages: list[str] | None = None
    model: str | None = None
