"""The times of words: which stretch of a window each token was written from, by the decoder's attention.

The method is OpenAI's, the times are those of transformers (``_extract_token_timestamps``, and the words of
its ``_combine_tokens_into_words``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.models.whisper.components.segments import SECONDS_PER_STEP

_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_OPENING, _CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_BROKEN = "\ufffd"
_DIAGONAL, _DOWN, _RIGHT = 0, 1, 2


class Word(NamedTuple):
    """A word with the white space before it, and the indices of its tokens."""

    text: str
    indices: list[int]


def token_times(attention: Tensor, num_positions: int, filter_width: int) -> list[float]:
    """The second of the window from which on each token's part is heard.

    Args:
        attention: (heads, tokens, positions) float32, of the heads that follow the sound.
        num_positions: Those of the recording in the window.
        filter_width: Positions over which the attention is smoothed, an odd number.
    """
    weights = attention[..., : max(1, num_positions)]
    if not weights.shape[1]:
        return []
    spread = weights.std(dim=-2, keepdim=True, unbiased=False)
    weights = (weights - weights.mean(dim=-2, keepdim=True)) / spread
    path = cheapest_path(-_smoothed(weights, filter_width).mean(dim=0).double().numpy())
    return [position * SECONDS_PER_STEP for position in path]


def _smoothed(weights: Tensor, width: int) -> Tensor:
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    padded = pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).sort().values[..., half]


def cheapest_path(costs: NDArray[np.float64]) -> list[int]:
    """Dynamic time warping: the column at which the cheapest way enters each row of ``costs`` (n, m).

    It goes from the first row and column to the last by steps down, to the right, or both. Cells of a
    diagonal depend on those of the two before alone, so that they are computed together; sums are rounded to
    float32, as in the reference, so that equal costs are decided equally.
    """
    rows, columns = costs.shape
    trace = np.full((rows + 1, columns + 1), _RIGHT, np.int8)
    trace[:, 0] = _DOWN
    # The costs of a way to the cells of the last two diagonals, by row.
    before, last = (np.full(rows + 1, np.inf, np.float32) for _ in range(2))
    before[0] = 0.0
    for diagonal in range(2, rows + columns + 1):
        at = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        both, down, right = before[at - 1], last[at - 1], last[at]
        is_both = (both < down) & (both < right)
        is_down = ~is_both & (down < both) & (down < right)
        least = np.where(is_both, both, np.where(is_down, down, right))
        trace[at, diagonal - at] = np.where(is_both, _DIAGONAL, np.where(is_down, _DOWN, _RIGHT))
        new = np.full(rows + 1, np.inf, np.float32)
        new[at] = costs[at - 1, diagonal - at - 1] + least
        before, last = last, new
    entered = [0] * rows
    row, column = rows, columns
    while row > 0 or column > 0:
        if row > 0:
            entered[row - 1] = column - 1
        step = trace[row, column]
        row -= step != _RIGHT
        column -= step != _DOWN
    return entered


def split_words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], language: str | None
) -> list[Word]:
    """The words of a text; punctuation is part of the word that it belongs to.

    Args:
        tokens: Those that have a text.
        language: Its code; None is a language with spaces between words.
    """
    words = _characters(tokens, decode)
    if language not in _WITHOUT_SPACES:
        words = _between_spaces(words)
    return _with_punctuation(words)


def _characters(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Word]:
    """The shortest runs of tokens that are whole characters."""
    whole = decode(tokens)
    found: list[Word] = []
    indices: list[int] = []
    settled = 0
    for index in range(len(tokens)):
        indices.append(index)
        text = decode([tokens[each] for each in indices])
        broken = text.find(_BROKEN)
        # The text itself may have the sign that stands for a broken character.
        if broken < 0 or whole[settled + broken : settled + broken + 1] in ("", _BROKEN):
            found.append(Word(text, indices))
            indices, settled = [], settled + len(text)
    return found


def _between_spaces(parts: list[Word]) -> list[Word]:
    words: list[Word] = []
    for part in parts:
        if not words or part.text.startswith(" ") or part.text.strip() in _PUNCTUATION:
            words.append(part)
        else:
            words[-1] = _joined(words[-1], part)
    return words


def _with_punctuation(parts: list[Word]) -> list[Word]:
    opened: list[Word] = []
    for part in reversed(parts):
        if opened and part.text.startswith(" ") and part.text.strip() in _OPENING:
            opened[-1] = _joined(part, opened[-1])
        else:
            opened.append(part)
    words: list[Word] = []
    for part in reversed(opened):
        if words and not words[-1].text.endswith(" ") and part.text in _CLOSING:
            words[-1] = _joined(words[-1], part)
        else:
            words.append(part)
    return words


def _joined(first: Word, second: Word) -> Word:
    return Word(first.text + second.text, first.indices + second.indices)
