"""The request models of the HTTP API (contract: a path that existing code imports)."""

from sglang_omni.serve.api.protocol.admin import AbortRequest
from sglang_omni.serve.api.protocol.chat import AudioOptions, ChatCompletionRequest
from sglang_omni.serve.api.protocol.completions import CompletionRequest
from sglang_omni.serve.api.protocol.content import ChatMessage
from sglang_omni.serve.api.protocol.generate import GenerateSampling, NativeRequest
from sglang_omni.serve.api.protocol.options import StreamOptions
from sglang_omni.serve.api.protocol.speech import CreateSpeechRequest as SpeechRequest
from sglang_omni.serve.api.protocol.transcriptions import TranscriptionForm

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
