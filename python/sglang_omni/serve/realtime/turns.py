"""Turn detection: when a speaker begins and ends a turn. What it may be set to, and what a detector is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sglang_omni.serve.realtime.fields import RealtimeModel


class ServerVad(RealtimeModel):
    """Turns by voice activity."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of speech from which a frame counts as speech."""
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    """Audio before the detected beginning that belongs to the turn."""
    silence_duration_ms: Annotated[int, Field(ge=0, le=10_000)] = 500
    """Silence after which the turn is over."""
    create_response: bool = True
    """True if the end of a turn asks for a response."""
    interrupt_response: bool = True
    """True if the beginning of a turn ends the response that is under way."""
    idle_timeout_ms: Annotated[int, Field(ge=5000, le=30_000)] | None = None
    """Silence after an answer was played at which the model speaks again."""


class SemanticVad(RealtimeModel):
    """Turns by voice activity, and by whether what was said is complete. ``eagerness``: of the answer."""

    type: Literal["semantic_vad"] = "semantic_vad"
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    """How soon the answer comes if the speaker's sentence sounds unfinished."""
    create_response: bool = True
    """True if the end of a turn asks for a response."""
    interrupt_response: bool = True
    """True if the beginning of a turn ends the response that is under way."""


TurnDetection = Annotated[ServerVad | SemanticVad, Field(discriminator="type")]


@dataclass(frozen=True)
class SpeechStarted:
    """A turn begins. ``audio_start_ms``: where, prefix padding included, from the detector's first sample."""

    audio_start_ms: int


@dataclass(frozen=True)
class SpeechStopped:
    """The turn is over. ``audio_end_ms``: where, from the detector's first sample."""

    audio_end_ms: int


class TurnDetector(Protocol):
    """Finds the turns in the sound of one session. A new one is made after the input buffer was emptied."""

    def feed(self, samples: NDArray[np.float32]) -> list[SpeechStarted | SpeechStopped]:
        """What the next samples, float32 of shape (n,) at 24 kHz, tell. Runs in a thread of its own."""
        ...
