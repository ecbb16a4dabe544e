"""The events on their way to a client."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from sglang_omni.serve.realtime.events import new_id

# Sound comes faster than it is played: some minutes of it may wait for a client.
MAX_WAITING_BYTES = 64 * 2**20
_EVENT_BYTES = 1024


class EventQueue:
    """A queue with one reader.

    Attributes:
        is_closed: True if nothing more is taken.
        has_overflowed: True if the client has left so much unread that the session is over.
        sound_bytes: Of the encoded sound that waits.
    """

    def __init__(self) -> None:
        self.has_overflowed = False
        self._events: deque[dict[str, Any]] = deque()
        self._bytes = 0
        self.sound_bytes = 0
        self._changed = asyncio.Event()
        self.is_closed = False

    def put(self, kind: str, **fields: Any) -> None:
        if self.is_closed:
            return
        event = {"type": kind, "event_id": new_id("event"), **fields}
        self._bytes += _size(event)
        if self._bytes > MAX_WAITING_BYTES:
            self.has_overflowed = True
            self.close()
            return
        self.sound_bytes += _sound(event)
        self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        """Take no more; what is there may still be read."""
        self.is_closed = True
        self._changed.set()

    async def get(self) -> dict[str, Any] | None:
        """The next event, once there is one; None if the last one has been read."""
        while not self._events:
            if self.is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        self._bytes -= _size(event)
        self.sound_bytes -= _sound(event)
        return event


def _size(event: dict[str, Any]) -> int:
    delta = event.get("delta")
    return _EVENT_BYTES + (len(delta) if isinstance(delta, str) else 0)


def _sound(event: dict[str, Any]) -> int:
    return len(event["delta"]) * 3 // 4 if event["type"] == "response.output_audio.delta" else 0
