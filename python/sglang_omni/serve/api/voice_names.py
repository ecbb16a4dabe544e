"""OpenAI's voice names, which its clients send to any model, and the warning that another voice speaks."""

from __future__ import annotations

import json
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
# The warnings of the HTTP request that the task serves; None in a WebSocket.
_warnings: ContextVar[set[str] | None] = ContextVar("_warnings", default=None)


def warn_of(voice: str, speaks: str) -> None:
    """Have an HTTP answer say that one voice speaks in another's place."""
    if (warnings := _warnings.get()) is not None:
        said = f"this model has no voice {voice!r}, one of OpenAI's: its default voice {speaks!r} speaks"
        # In ASCII, as a header must be.
        warnings.add(f"299 sglang-omni {json.dumps(said)}")


class VoiceWarnings:
    """Middleware that adds ``Warning`` headers (RFC 7234, 5.5) to answers by another voice than asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        warnings: set[str] = set()

        async def warned(message: Message) -> None:
            if warnings and message["type"] == "http.response.start":
                added = [(b"warning", warning.encode()) for warning in sorted(warnings)]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        token = _warnings.set(warnings)
        try:
            await self.app(scope, receive, warned)
        finally:
            _warnings.reset(token)
