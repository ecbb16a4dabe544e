"""A client that hears sound in another way than by events, as over WebRTC."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sglang_omni.serve.realtime.sound import Samples


class Played(NamedTuple):
    """How far a client has heard an answer."""

    item_id: str
    ms: int


class AnswerListener(Protocol):
    """Plays the sound of answers as it comes. A session without one sends its sound as events."""

    def play(self, response_id: str, item_id: str, samples: Samples, rate: int) -> None:
        """Play these samples, float32 of shape (n,), after those before them."""
        ...

    def finish(self, response_id: str) -> None:
        """No more sound of this response comes."""
        ...

    def clear(self) -> Played | None:
        """Be silent at once. How far the answer was heard that was being played; None if none was."""
        ...
