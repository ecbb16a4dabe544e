"""The request models of the HTTP API. Contract: existing code imports from this path."""

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
