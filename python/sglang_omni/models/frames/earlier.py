"""What earlier speech the next part of a text hears, so that its voice stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class SpokenTurn(NamedTuple):
    """A text, as token ids, and the frames (n, G) in which it was said.

    Attributes:
        is_voice: True for the recording of the voice that is to speak.
    """

    text: list[int]
    frames: Tensor
    is_voice: bool = False


class EarlierSpeech(Protocol):
    """Decides it. Stateless: what is kept of a text's speech is the caller's."""

    def keep(self, kept: Sequence[SpokenTurn], turn: SpokenTurn) -> Sequence[SpokenTurn]:
        """What is kept once a part, which may have no frames, was said after what was ``kept``."""
        ...

    def heard(
        self, kept: Sequence[SpokenTurn], *, has_voice: bool, positions: Callable[[Sequence[SpokenTurn]], int]
    ) -> Sequence[SpokenTurn]:
        """What the next part hears, oldest first.

        Args:
            has_voice: True if it also hears a recording of its voice.
            positions: The positions that its prompt with these turns, and its speech, may take.
        """
        ...


class LastPart:
    """The part before, unless it is silent or the context has no room for it.

    Args:
        context_length: The most tokens and frames of a prompt and its speech.
    """

    def __init__(self, context_length: int) -> None:
        self._context_length = context_length

    def keep(self, kept: Sequence[SpokenTurn], turn: SpokenTurn) -> Sequence[SpokenTurn]:
        return [turn] if len(turn.frames) else []

    def heard(
        self, kept: Sequence[SpokenTurn], *, has_voice: bool, positions: Callable[[Sequence[SpokenTurn]], int]
    ) -> Sequence[SpokenTurn]:
        return kept if not kept or positions(kept) <= self._context_length else []


class FirstAndLast:
    """The last part that was not silent, and without a recording the first, whose voice is to stay.

    Args:
        most_frames: Of both. The first is kept longer.
    """

    def __init__(self, most_frames: int) -> None:
        self._most_frames = most_frames

    def keep(self, kept: Sequence[SpokenTurn], turn: SpokenTurn) -> Sequence[SpokenTurn]:
        return [*kept[:1], turn] if len(turn.frames) else kept

    def heard(
        self, kept: Sequence[SpokenTurn], *, has_voice: bool, positions: Callable[[Sequence[SpokenTurn]], int]
    ) -> Sequence[SpokenTurn]:
        chosen = list(kept[-1:] if has_voice else kept)
        while sum(len(turn.frames) for turn in chosen) > self._most_frames:
            chosen.pop()
        return chosen


class NothingEarlier:
    """For models that keep a voice without it."""

    def keep(self, kept: Sequence[SpokenTurn], turn: SpokenTurn) -> Sequence[SpokenTurn]:
        return kept

    def heard(
        self, kept: Sequence[SpokenTurn], *, has_voice: bool, positions: Callable[[Sequence[SpokenTurn]], int]
    ) -> Sequence[SpokenTurn]:
        return kept
