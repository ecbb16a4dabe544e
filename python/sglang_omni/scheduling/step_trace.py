"""What happens to one traced request inside a stage: when it waits, each step that it is in, and its hops."""

from __future__ import annotations

import time
from typing import TypedDict

# Steps that are reported one by one; of later ones only their number and time.
_MOST_STEPS = 16
# Payloads and streams from and to other stages that are reported.
_MOST_HOPS = 32


class Step(TypedDict):
    """One step of a scheduler that worked on the request, or the last steps together.

    Attributes:
        kind: ``prefill`` or ``decode`` for a step of a language model, else ``step``.
        start: Seconds since the request came to the stage.
        seconds: How long it took.
        batch: How many requests were in it, on average.
        steps: How many steps this is.
    """

    kind: str
    start: float
    seconds: float
    batch: float
    steps: int


class Hop(TypedDict):
    """A payload or a stream between two stages.

    Attributes:
        way: ``from`` or ``to`` the peer.
        peer: The other instance, or ``coordinator``.
        stream: True if it is the first chunk of a stream.
        at: Seconds since the request came to the stage.
    """

    way: str
    peer: str
    stream: bool
    at: float


class VisitDetail(TypedDict):
    """A request's time in a stage in detail, times in seconds since it came.

    Attributes:
        ready: When all of its input was there and the scheduler got it; None if it never was.
        steps: The first steps each, the others together.
        hops: Where its payloads came from and went.
    """

    ready: float | None
    steps: list[Step]
    hops: list[Hop]


class StepTrace:
    """Records one traced request's visit to a stage.

    Args:
        since: When it came, by ``time.monotonic``.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._ready: float | None = None
        self._steps: list[Step] = []
        self._hops: list[Hop] = []

    def ready(self) -> None:
        """The scheduler gets the request now."""
        self._ready = time.monotonic() - self._since

    def step(self, kind: str, seconds: float, batch: int) -> None:
        """A step of ``batch`` requests that took ``seconds`` ends now. Called in the scheduler's thread."""
        start = time.monotonic() - self._since - seconds
        if len(self._steps) < _MOST_STEPS:
            self._steps.append(Step(kind=kind, start=start, seconds=seconds, batch=batch, steps=1))
            return
        last = self._steps[-1]
        count = last["steps"] + 1
        last["batch"] += (batch - last["batch"]) / count
        last["seconds"] = start + seconds - last["start"]
        last["steps"] = count

    def hop(self, way: str, peer: str, *, stream: bool = False) -> None:
        """A payload, or the first chunk of a stream, comes or goes now."""
        if len(self._hops) < _MOST_HOPS:
            at = time.monotonic() - self._since
            self._hops.append(Hop(way=way, peer=peer, stream=stream, at=at))

    def detail(self) -> VisitDetail:
        return VisitDetail(ready=self._ready, steps=self._steps, hops=self._hops)
