"""The request models of the HTTP API (contract: a path that existing code imports)."""

from sglang_omni.serve.models.admin import AbortRequest
from sglang_omni.serve.models.chat import AudioOptions, ChatCompletionRequest
from sglang_omni.serve.models.completions import CompletionRequest
from sglang_omni.serve.models.content import ChatMessage
from sglang_omni.serve.models.generate import GenerateSampling, NativeRequest
from sglang_omni.serve.models.options import StreamOptions
from sglang_omni.serve.models.speech import CreateSpeechRequest as SpeechRequest
from sglang_omni.serve.models.transcriptions import TranscriptionForm

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
