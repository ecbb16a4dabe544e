"""The request models of the HTTP API (contract: a path that existing code imports)."""

from sglang_omni.serve.api.protocol import (
    AbortRequest,
    AudioOptions,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    GenerateSampling,
    NativeRequest,
    SpeechRequest,
    StreamOptions,
    TranscriptionForm,
)

__all__ = [
    "AbortRequest",
    "AudioOptions",
    "ChatCompletionRequest",
    "ChatMessage",
    "CompletionRequest",
    "GenerateSampling",
    "NativeRequest",
    "SpeechRequest",
    "StreamOptions",
    "TranscriptionForm",
]
