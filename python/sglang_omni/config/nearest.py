"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Comparing takes time in proportion to the square of the length; no valid name is nearly as long.
_LONGEST_COMPARED = 100


def nearest(name: str, valid: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The valid name that may have been meant; None if there is none.

    Args:
        name: What was given. A long one is not compared.
        valid: The names to choose from.
        cutoff: How alike the two must be, from 0 to 1.
    """
    if len(name) > _LONGEST_COMPARED:
        return None
    return next(iter(difflib.get_close_matches(name, list(valid), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the valid name nearest to ``name``, else a list of the valid names."""
    choices = sorted(set(valid))
    close = nearest(name, choices, cutoff=0.5)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; valid names: {', '.join(map(repr, choices))}" if choices else ""
