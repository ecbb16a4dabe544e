"""What clients may do in a duplex session, whose model listens while it speaks."""

from __future__ import annotations

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.config import SessionConfig
from sglang_omni.serve.realtime.events import (
    ClientEvent,
    InputAudioClear,
    InputAudioCommit,
    ItemCreate,
    ItemTruncate,
    ResponseCreate,
)
from sglang_omni.serve.state import AppState

_REFUSED: dict[type[ClientEvent], str] = {
    InputAudioCommit: "there are no turns to commit: go on with input_audio_buffer.append, silence too",
    InputAudioClear: "sound is heard at once and cannot be taken back: response.cancel ends the conversation",
    ItemCreate: "the model takes only sound: send it with input_audio_buffer.append",
    ItemTruncate: "the model speaks while it listens, and keeps no items to cut; leave the event out",
    ResponseCreate: "the model answers from the first input_audio_buffer.append on: send sound",
}


def check_event(event: ClientEvent) -> None:
    """
    Raises:
        RequestError: A duplex session has nothing that the event could change.
    """
    if (reason := _REFUSED.get(type(event))) is not None:
        raise RequestError(
            f"{event.type}: in a duplex session {reason}", param="type", code="unsupported_parameter"
        )


def check_duplex(config: SessionConfig, server: AppState) -> None:
    """
    Raises:
        RequestError: The pipeline does not listen while it speaks, or a field is of no use then.
    """
    if not server.capabilities.duplex:
        raise RequestError(
            f"session.duplex: the model {server.served_name!r} does not listen while it speaks; leave it out",
            param="session.duplex",
            code="unsupported_parameter",
        )
    heard = config.audio.input
    for param, is_set, remedy in (
        ("type", config.type == "transcription", "realtime"),
        ("instructions", bool(config.instructions), '""'),
        ("tools", bool(config.tools), "[]"),
        ("audio.input.turn_detection", heard.turn_detection is not None, "null"),
        ("audio.input.transcription", heard.transcription is not None, "null"),
    ):
        if is_set:
            raise RequestError(
                f"session.{param}: a duplex session has none of that, as the model listens while it speaks; "
                f"set it to {remedy}",
                param=f"session.{param}",
                code="unsupported_parameter",
            )


def check_call(config: SessionConfig, *, in_call: bool) -> None:
    """
    Raises:
        RequestError: A call is to be duplex: its playback keeps what it cannot play in time, and would fall
            behind.
    """
    if in_call and config.duplex:
        raise RequestError(
            "session.duplex: calls over WebRTC cannot be duplex yet; open a WebSocket at /v1/realtime",
            param="session.duplex",
            code="unsupported_parameter",
        )
