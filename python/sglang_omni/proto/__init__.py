"""Messages, requests and payloads between client, coordinator and stages."""

from sglang_omni.proto.errors import DuplicateRequest, RequestError, Unavailable, shortened
from sglang_omni.proto.messages import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    EndpointsMessage,
    FlushCacheMessage,
    Message,
    ProfilerStartMessage,
    ProfilerStopMessage,
    ProgressMessage,
    ShutdownMessage,
    StatsMessage,
    StreamMessage,
    SubmitMessage,
    parse_message,
)
from sglang_omni.proto.request import (
    TRACED,
    OmniRequest,
    Replicas,
    RequestState,
    StagePayload,
    StageTime,
)

__all__ = [
    "TRACED",
    "AbortMessage",
    "CompleteMessage",
    "DataReadyMessage",
    "DuplicateRequest",
    "EndpointsMessage",
    "FlushCacheMessage",
    "Message",
    "OmniRequest",
    "ProfilerStartMessage",
    "ProfilerStopMessage",
    "ProgressMessage",
    "Replicas",
    "RequestError",
    "RequestState",
    "ShutdownMessage",
    "StagePayload",
    "StageTime",
    "StatsMessage",
    "StreamMessage",
    "SubmitMessage",
    "Unavailable",
    "parse_message",
    "shortened",
]
