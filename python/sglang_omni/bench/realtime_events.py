"""Events of realtime sessions, by the names that OpenAI gives them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import aiohttp

from sglang_omni.bench.outcome import CallFailed

# Names of the protocol, and those of its earlier form.
SOUND = ("response.output_audio.delta", "response.audio.delta")
TEXT = (
    "response.output_audio_transcript.delta",
    "response.audio_transcript.delta",
    "response.output_text.delta",
    "response.text.delta",
)


def session_path(model: str) -> str:
    """Where a session with a model is opened."""
    return f"/v1/realtime?model={quote(model)}"


async def send_event(socket: aiohttp.ClientWebSocketResponse, kind: str, **fields: Any) -> None:
    """Sends an event of this type."""
    await socket.send_str(json.dumps({"type": kind, **fields}))


async def next_event(socket: aiohttp.ClientWebSocketResponse, *kinds: str) -> dict[str, Any]:
    """The next event of these types, others are skipped; the next of any type if none is named.

    Raises:
        CallFailed: It is an ``error``, which was not named, or the session has ended.
    """
    while True:
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise CallFailed("closed session", f"the server closed it ({socket.close_code}): {message.extra}")
        event: dict[str, Any] = json.loads(message.data)
        if event["type"] == "error" and "error" not in kinds:
            raise CallFailed("error event", str(event["error"].get("message")))
        if not kinds or event["type"] in kinds:
            return event
