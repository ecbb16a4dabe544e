"""Clients of a pipeline: through its coordinator in this process, or over HTTP through a base URL."""

from sglang_omni.client.client import Client, transcription_request
from sglang_omni.client.sync import SyncClient
from sglang_omni.client.types import (
    AbortResult,
    ClientError,
    CompletionAudio,
    CompletionResult,
    CompletionStreamChunk,
    GenerateChunk,
    GenerateRequest,
    Message,
    SamplingParams,
    SpeechResult,
    TokenLogprob,
    ToolCall,
    TranscriptionResult,
    TranscriptionSegment,
    TranscriptionWord,
    UsageInfo,
)
from sglang_omni.proto import RequestError

__all__ = [
    "AbortResult",
    "Client",
    "ClientError",
    "CompletionAudio",
    "CompletionResult",
    "CompletionStreamChunk",
    "GenerateChunk",
    "GenerateRequest",
    "Message",
    "RequestError",
    "SamplingParams",
    "SpeechResult",
    "SyncClient",
    "TokenLogprob",
    "ToolCall",
    "TranscriptionResult",
    "TranscriptionSegment",
    "TranscriptionWord",
    "UsageInfo",
    "transcription_request",
]
