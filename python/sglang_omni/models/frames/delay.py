"""The delay pattern: each group of codes is a row behind the one before it, and a row is chosen at once.

From MusicGen: Copet et al., "Simple and controllable music generation", https://arxiv.org/abs/2306.05284
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Repetition(NamedTuple):
    """A code that its group has had ``most`` times or more in the last ``window`` rows is drawn again."""

    window: int
    most: int


class DelayPattern(NamedTuple):
    """Frames of codes as the rows that a decoder reads and makes: code g of frame t is in row t + g + 1.

    Attributes:
        num_code_groups: G, the codes of a frame.
        begin, end: What fills a group's places before its first code, and after its last; above all codes.
        repetition: Of drawn codes; None if they may repeat as they like.
    """

    num_code_groups: int
    begin: int
    end: int
    repetition: Repetition | None = None

    def delayed(self, frames: Tensor) -> Tensor:
        """Rows (n + G + 1, G) of whole frames (n, G): the first is all ``begin``, the last all ``end``."""
        count, groups = len(frames), self.num_code_groups
        rows = frames.new_full((count + groups + 1, groups), self.end)
        for group in range(groups):
            rows[: group + 1, group] = self.begin
            rows[group + 1 : group + 1 + count, group] = frames[:, group]
        return rows


class DelayedRows:
    """The rows of a speech so far, on the host, and what they demand of the next one.

    Args:
        before: The rows (G,) before the speech, of which ``repetition`` sees the last.
    """

    def __init__(self, pattern: DelayPattern, before: Sequence[Tensor]) -> None:
        self._pattern = pattern
        window = 0 if pattern.repetition is None else pattern.repetition.window
        self._before: list[list[int]] = [row.tolist() for row in before[len(before) - window :]]
        self._spoken: list[list[int]] = []
        # The first row in which a group has ended.
        self._ended: int | None = None

    def settle(self, chosen: Sequence[int]) -> list[int]:
        """The next row: codes where the pattern leaves a choice, and what it demands elsewhere."""
        begin, end, step = self._pattern.begin, self._pattern.end, len(self._spoken)
        over = 0 if self._ended is None else step - self._ended
        return [
            begin if group >= step else end if group < over else code for group, code in enumerate(chosen)
        ]

    def repeated(self, row: Sequence[int]) -> list[int]:
        """The groups whose code in the next row is to be drawn again."""
        pattern = self._pattern
        if pattern.repetition is None:
            return []
        window, most = pattern.repetition
        recent = self._spoken[-window:]
        if len(recent) < window:
            recent = [*self._before, *recent][-window:]
        return [
            group
            for group, code in enumerate(row)
            if code < pattern.begin and sum(before[group] == code for before in recent) >= most
        ]

    def add(self, row: list[int]) -> bool:
        """Takes the next row. True if it ends the speech: it then has no code, and belongs to no frame."""
        if all(code == self._pattern.end for code in row):
            return True
        if self._ended is None and self._pattern.end in row:
            self._ended = len(self._spoken)
        self._spoken.append(row)
        return False

    def frames(self, first: int) -> Tensor:
        """The whole frames (n, G) int64 from number ``first`` on.

        As in the reference, a group that ends before the others has its last code, ``begin`` - 1, to the end.
        """
        groups, last = self._pattern.num_code_groups, self._pattern.begin - 1
        rows = self._spoken
        frames = [
            [min(rows[frame + 1 + group][group], last) for group in range(groups)]
            for frame in range(first, len(rows) - groups)
        ]
        return torch.tensor(frames, dtype=torch.int64).view(-1, groups)
