"""The order in which a stage's requests take turns: first the listener whose sound runs out first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args

from sglang_omni.scheduling.playback import Playback, num_samples

SchedulePolicy = Literal["deadline", "fcfs"]

# A request for sound counts as dry if it has none for so long: it goes before listeners with more in hand.
FIRST_SOUND_S = 0.5
# A request that is answered whole, which has no listener yet, gets a turn at least so often if others are
# late. If they have more than this in hand, it goes before them.
WHOLE_ANSWER_S = 10.0


class Turn(Protocol):
    """When a request's next turn is due. The earliest is next, of several the one that has waited longest."""

    due: float

    def begin(self, *, listens: bool) -> None:
        """The request has come. ``listens``: its chunks are played as they come."""

    def put_out(self, chunk: Any) -> None:
        """A turn of the request has come to a chunk, or to None."""


class FcfsTurn:
    """First come, first served: no turn is due before another."""

    due = 0.0

    def begin(self, *, listens: bool) -> None:
        return None

    def put_out(self, chunk: Any) -> None:
        return None


class DeadlineTurn:
    """A listener's turn is due when the sound put out so far has been played.

    Before that it is due ``FIRST_SOUND_S`` after the request came. Without a listener it is due
    ``WHOLE_ANSWER_S`` after the last one. So every turn's deadline stands until it is taken, and no request
    starves.

    Args:
        clock: Its time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        # Until the payload has come, there is nothing to do.
        self.due = float("inf")
        self._clock = clock
        self._playback: Playback | None = None

    def begin(self, *, listens: bool) -> None:
        now = self._clock()
        self._playback = Playback(now) if listens else None
        self.due = now + (FIRST_SOUND_S if listens else WHOLE_ANSWER_S)

    def put_out(self, chunk: Any) -> None:
        now = self._clock()
        if self._playback is None:
            self.due = now + WHOLE_ANSWER_S
            return
        self._playback.feed(now, sound_seconds(chunk))
        if self._playback.dry_at is not None:
            self.due = self._playback.dry_at


def turns(policy: SchedulePolicy, clock: Callable[[], float]) -> Callable[[], Turn]:
    """Makes the turns of each request.

    Raises:
        ValueError: The policy is unknown.
    """
    if policy not in get_args(SchedulePolicy):
        names = " or ".join(map(repr, get_args(SchedulePolicy)))
        raise ValueError(f"schedule_policy must be {names}, got {policy!r}")
    return FcfsTurn if policy == "fcfs" else lambda: DeadlineTurn(clock)


def sound_seconds(chunk: Any) -> float:
    """Length of a chunk's sound in seconds; 0 if it has none."""
    rate = chunk.get("sample_rate") if isinstance(chunk, Mapping) else None
    return num_samples(chunk) / float(rate) if rate else 0.0
