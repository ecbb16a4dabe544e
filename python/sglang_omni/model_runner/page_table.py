"""Where the keys and values of running sequences are, on their device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TableUpdate(NamedTuple):
    """Where a step's sequences are in the table, and what has to be written there before.

    Attributes:
        rows: Of each sequence.
        places, pages: Entries of the table as one row, and what they become.
        sequences: The pages of each sequence, and how many of them the table has afterwards.
    """

    rows: list[int]
    places: list[int]
    pages: list[int]
    sequences: list[tuple[list[int], int]]


class PageTable:
    """A row of page numbers for each sequence that runs, of which steps write what is new.

    A sequence is known by its list of pages, which grows at its end alone: one that is computed anew has a
    new list. The rows of those that were not in a step for longest are taken for others.

    Args:
        max_sequences: The most of a step.
        max_pages: Of a sequence; more are left out.
        no_page: What rows are filled with at first: a page that may be read.

    Attributes:
        rows: (max_sequences + 1, max_pages) int32. Behind a sequence's pages are any that may be read. The
            last row is that of no sequence.
    """

    def __init__(self, max_sequences: int, max_pages: int, no_page: int, device: torch.device) -> None:
        self.rows = torch.full((max_sequences + 1, max_pages), no_page, dtype=torch.int32, device=device)
        self._max_pages = max_pages
        self._free = list(range(max_sequences))
        # The row of each list of pages, by its id, with the list, whose id is its own for as long; and how
        # many of its pages are there.
        self._known: OrderedDict[int, tuple[list[int], int, int]] = OrderedDict()

    @property
    def no_sequence(self) -> int:
        return len(self.rows) - 1

    def update(self, sequences: Sequence[list[int]]) -> TableUpdate:
        """Gives a step's sequences their rows. ``write`` it before the step; until then, nothing counts as
        written.

        Args:
            sequences: The pages of each, ``max_sequences`` at most.
        """
        update = TableUpdate([], [], [], [])
        for pages in sequences:
            row, written = self._row(pages)
            update.rows.append(row)
            count = min(len(pages), self._max_pages)
            if written < count:
                first = row * self._max_pages
                update.places.extend(range(first + written, first + count))
                update.pages.extend(pages[written:count])
            self._known[id(pages)] = pages, row, written
            update.sequences.append((pages, count))
        return update

    def write(self, update: TableUpdate, places: Tensor, pages: Tensor) -> None:
        """Writes an update, whose ``places`` and ``pages`` are (n,) int32 on the device."""
        if update.places:
            self.rows.view(-1).index_copy_(0, places.long(), pages)
        for (sequence, count), row in zip(update.sequences, update.rows, strict=True):
            self._known[id(sequence)] = sequence, row, count

    def _row(self, pages: list[int]) -> tuple[int, int]:
        """A sequence's row, and how many of its pages are there already."""
        known = self._known.get(id(pages))
        if known is not None:
            self._known.move_to_end(id(pages))
            return known[1:]
        # Those of this step are behind all others.
        row = self._free.pop() if self._free else self._known.popitem(last=False)[1][1]
        return row, 0
