"""What was said to a server during a session, and what came of it, each with its time."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sglang_omni.bench.clips import RATE
from sglang_omni.bench.judge.listener import Drop, Piece, PlayOut
from sglang_omni.bench.judge.sounds import AUDIBLE, audible
from sglang_omni.bench.realtime_events import SOUND, TEXT

_TRANSCRIPT = "conversation.item.input_audio_transcription."


class Said(NamedTuple):
    """Sound at the microphone, from its first audible sample to its last.

    Attributes:
        start: In seconds of the recording's clock.
        end: The same.
        text: Its words; None if they are not known.
    """

    start: float
    end: float
    text: str | None


@dataclass
class RecordedAnswer:
    """A response.

    Attributes:
        created: When it was announced.
        done: When its end was; None before.
        status: As ``response.done`` has it.
        details: The ``status_details`` there.
        usage: The ``usage`` there.
        texts: When each piece of text came.
    """

    created: float
    done: float | None = None
    status: str = "in_progress"
    details: Any = None
    usage: dict[str, Any] = field(default_factory=dict)
    texts: list[float] = field(default_factory=list)


@dataclass
class SessionRecording:
    """
    Attributes:
        listener: Plays the answers.
        pieces: All of their sound, as it came.
        answers: By their ids, in the order in which they were announced.
        items: When each item of the user's speech was committed, by its id.
        transcripts: What the server understood in it; empty if it failed to.
        errors: The messages of all ``error`` events.
    """

    listener: PlayOut = field(default_factory=PlayOut)
    pieces: list[Piece] = field(default_factory=list)
    answers: dict[str, RecordedAnswer] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    transcripts: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def take(self, now: float, event: Mapping[str, Any]) -> Drop | None:
        """Takes an event of the server's.

        Args:
            now: When it came.

        Returns:
            What the listener dropped because the event says that a user speaks.
        """
        kind = event["type"]
        if kind in SOUND:
            self._take_sound(now, event)
        elif kind in TEXT:
            self._answer(now, event["response_id"]).texts.append(now)
        elif kind == "response.created":
            self._answer(now, event["response"]["id"])
        elif kind == "response.done":
            response = event["response"]
            answer = self._answer(now, response["id"])
            answer.done, answer.status = now, response["status"]
            answer.details, answer.usage = response.get("status_details"), response.get("usage") or {}
        elif kind == "input_audio_buffer.speech_started":
            return self.listener.drop(now)
        elif kind == "input_audio_buffer.committed":
            self.items.setdefault(event["item_id"], now)
        elif kind in (f"{_TRANSCRIPT}completed", f"{_TRANSCRIPT}failed"):
            self.items.setdefault(event["item_id"], now)
            self.transcripts[event["item_id"]] = event.get("transcript") or ""
        elif kind == "error":
            self.errors.append(str(event["error"].get("message")))
        return None

    @property
    def is_answering(self) -> bool:
        """True if a response is under way."""
        return any(answer.done is None for answer in self.answers.values())

    def _answer(self, now: float, response: str) -> RecordedAnswer:
        return self.answers.setdefault(response, RecordedAnswer(now))

    def _take_sound(self, now: float, event: Mapping[str, Any]) -> None:
        data = base64.b64decode(event["delta"])
        samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2")
        piece = Piece(
            now,
            event["response_id"],
            event["item_id"],
            len(samples) / RATE,
            tuple(audible(samples, AUDIBLE)),
        )
        self._answer(now, piece.response)
        self.pieces.append(piece)
        self.listener.feed(piece)
