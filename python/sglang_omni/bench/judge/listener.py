"""A listener with a play-out buffer: when each piece of the answers' sound is played, and what never is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Span = tuple[float, float]


class Piece(NamedTuple):
    """Sound of an answer, as one event brought it.

    Attributes:
        at: When it came, in seconds.
        response: The id of its response.
        item: The id of its item.
        seconds: How long it plays.
        audible: What of it can be heard, in seconds from its first sample.
    """

    at: float
    response: str
    item: str
    seconds: float
    audible: tuple[Span, ...]


@dataclass
class PlayedPiece:
    """
    Attributes:
        start: When its first sample was played.
        end: When its last one was, or when the listener dropped the rest.
        audible: The times within in which it was heard.
    """

    response: str
    item: str
    start: float
    end: float
    audible: list[Span]


class Drop(NamedTuple):
    """
    Attributes:
        at: When the listener dropped what it had not played.
        seconds: How much that was.
        response: Whose sound was being played; None if there was none to drop.
        item: Its item.
        item_seconds: How much of the item's sound was played.
    """

    at: float
    seconds: float
    response: str | None = None
    item: str | None = None
    item_seconds: float = 0.0


@dataclass
class PlayOut:
    """Plays each piece behind the one before, as soon as it is there.

    Attributes:
        played: In order; none overlaps another.
        drops: Each time at which it dropped what it had not played.
    """

    played: list[PlayedPiece] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)

    @property
    def dry_at(self) -> float:
        """When all sound so far has been played; 0 before the first."""
        return self.played[-1].end if self.played else 0.0

    def feed(self, piece: Piece) -> None:
        """Takes a piece that has just come."""
        start = max(piece.at, self.dry_at)
        audible = [(start + begin, start + end) for begin, end in piece.audible]
        self.played.append(PlayedPiece(piece.response, piece.item, start, start + piece.seconds, audible))

    def drop(self, at: float) -> Drop:
        """Drops what it has not played at ``at``, as clients do when a user begins to speak."""
        left = self.dry_at - at
        drop = Drop(at, 0.0)
        if left > 0:
            # The first piece that was not over began when it came, so one that has begun is always left.
            while self.played[-1].start > at:
                self.played.pop()
            last = self.played[-1]
            last.end = at
            last.audible = [(begin, min(end, at)) for begin, end in last.audible if begin < at]
            seconds = sum(each.end - each.start for each in self.played if each.item == last.item)
            drop = Drop(at, left, last.response, last.item, seconds)
        self.drops.append(drop)
        return drop
