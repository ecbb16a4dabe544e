"""Residual vector quantization with factorized codebooks: rows to codes and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, normalize


class Codebook(NamedTuple):
    """The codes of one group, in a space of few dimensions into which rows are projected.

    Attributes:
        codes: (size, dimensions).
        into: Weight (dimensions, hidden) and bias of the projection into that space.
        out: Weight (hidden, dimensions) and bias of the projection back.
    """

    codes: Tensor
    into: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]

    def rows(self) -> Tensor:
        """(size, hidden), what each code stands for."""
        return linear(self.codes, *self.out)


class ResidualQuantizer:
    """Codebooks in a row, each for what the ones before it left of the input.

    Attributes:
        sizes: Codes of each group.
    """

    def __init__(self, codebooks: Sequence[Codebook]) -> None:
        self._codebooks = codebooks
        self._units = [normalize(book.codes) for book in codebooks]
        self.sizes = [len(book.codes) for book in codebooks]
        self._rows = torch.cat([book.rows() for book in codebooks])
        device = self._rows.device
        sizes = torch.tensor(self.sizes)
        self._last = (sizes - 1).unsqueeze(-1).to(device)
        self._offsets = (sizes.cumsum(0) - sizes).unsqueeze(-1).to(device)

    def encode(self, rows: Tensor) -> Tensor:
        """Codes (n, groups, steps) int64 of rows (n, steps, hidden): in each group the nearest by angle."""
        codes = []
        left = rows
        for book, units, group in zip(
            self._codebooks, self._units, self._rows.split(self.sizes), strict=True
        ):
            code = linear(normalize(linear(left, *book.into), dim=-1), units).argmax(dim=-1)
            left = left - embedding(code, group)
            codes.append(code)
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Rows (n, steps, hidden) of codes (n, groups, steps); a code that a group lacks is its last."""
        return embedding(codes.minimum(self._last) + self._offsets, self._rows).sum(dim=1)
