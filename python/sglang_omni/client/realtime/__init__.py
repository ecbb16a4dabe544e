"""The client's side of a spoken conversation: sessions of OpenAI's realtime protocol over a WebSocket.

``session.py`` is what a caller holds, ``events.py`` what it gets.
"""

from sglang_omni.client.realtime.events import (
    AnswerDone,
    AnswerSound,
    AnswerStarted,
    AnswerText,
    FunctionCalled,
    Heard,
    RealtimeAnswer,
    RealtimeEvent,
    RealtimeFault,
    SpeakerStarted,
    SpeakerStopped,
)
from sglang_omni.client.realtime.session import RealtimeSession
from sglang_omni.client.realtime.sync import SyncRealtimeSession

__all__ = [
    "AnswerDone",
    "AnswerSound",
    "AnswerStarted",
    "AnswerText",
    "FunctionCalled",
    "Heard",
    "RealtimeAnswer",
    "RealtimeEvent",
    "RealtimeFault",
    "RealtimeSession",
    "SpeakerStarted",
    "SpeakerStopped",
    "SyncRealtimeSession",
]
