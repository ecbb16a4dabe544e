"""Clients of a pipeline: through its coordinator in this process, or over HTTP through a base URL."""

from sglang_omni.client.client import Client
from sglang_omni.client.devices import Player, SoundDeviceError, microphone, play, record
from sglang_omni.client.sound import Sound, save
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
    ModelInfo,
    SamplingParams,
    ServerUnreachable,
    SpeechResult,
    SpeechStreamChunk,
    TokenLogprob,
    ToolCall,
    TranscriptionResult,
    TranscriptionSegment,
    TranscriptionWord,
    UsageInfo,
    VoiceList,
)
from sglang_omni.generation.errors import NoAudioError
from sglang_omni.generation.request import transcription_request
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
    "ModelInfo",
    "NoAudioError",
    "Player",
    "RequestError",
    "SamplingParams",
    "ServerUnreachable",
    "Sound",
    "SoundDeviceError",
    "SpeechResult",
    "SpeechStreamChunk",
    "SyncClient",
    "TokenLogprob",
    "ToolCall",
    "TranscriptionResult",
    "TranscriptionSegment",
    "TranscriptionWord",
    "UsageInfo",
    "VoiceList",
    "microphone",
    "play",
    "record",
    "save",
    "transcription_request",
]
