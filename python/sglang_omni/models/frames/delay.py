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

    def aligned(self, rows: Sequence[Tensor], first: int) -> list[Tensor]:
        """The frames (G,) from number ``first`` on that the rows (G,) of a speech hold whole.

        As in the reference, a group that ends before the others has its last code, ``begin`` - 1, to the end.
        """
        groups = self.num_code_groups
        return [
            torch.stack(list(rows[t + 1 : t + 1 + groups])).diagonal().clamp(max=self.begin - 1)
            for t in range(first, len(rows) - groups)
        ]


class DelayedRows:
    """The rows of a speech so far, on the host, and what they demand of the next one.

    Args:
        before: The last rows before the speech, of which ``repetition`` sees its window.
    """

    def __init__(self, pattern: DelayPattern, before: Sequence[Tensor]) -> None:
        self._pattern = pattern
        window = 0 if pattern.repetition is None else pattern.repetition.window
        recent = before[-window:] if window else []
        self._rows: list[list[int]] = [row.tolist() for row in recent]
        self._count = 0
        # The first row in which a group has ended.
        self._ended: int | None = None

    def settle(self, chosen: Sequence[int]) -> list[int]:
        """The next row: codes where the pattern leaves a choice, and what it demands elsewhere."""
        begin, end = self._pattern.begin, self._pattern.end
        over = 0 if self._ended is None else self._count - self._ended
        return [
            begin if group >= self._count else end if group < over else code
            for group, code in enumerate(chosen)
        ]

    def repeated(self, row: Sequence[int]) -> list[int]:
        """The groups whose code in the next row is to be drawn again."""
        pattern = self._pattern
        if pattern.repetition is None:
            return []
        window, most = pattern.repetition
        recent = self._rows[-window:]
        return [
            group
            for group, code in enumerate(row)
            if code < pattern.begin and sum(before[group] == code for before in recent) >= most
        ]

    def add(self, row: list[int]) -> bool:
        """Takes the next row. True if it ends the speech: it then has no code, and belongs to no frame."""
        if self._ended is None and self._pattern.end in row:
            self._ended = self._count
        self._rows.append(row)
        self._count += 1
        return all(code == self._pattern.end for code in row)
