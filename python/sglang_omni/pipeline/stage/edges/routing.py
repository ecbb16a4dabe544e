"""Checks of where a stage's hooks send a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


def checked_targets(
    returned: Any, allowed: Collection[str], *, stage: str, hook: str, empty_ok: bool = False
) -> list[str]:
    """The stage names a routing hook returned, in order and each once.

    Args:
        returned: A name, names, or None for no name.
        allowed: The names the pipeline's configuration leaves to choose from.
        stage: The stage the hook belongs to.
        hook: The hook's name, for the error.
        empty_ok: Whether no name at all is an answer.

    Raises:
        ValueError: ``returned`` is not a name or names, or not among ``allowed``.
    """
    names = [returned] if isinstance(returned, str) else () if returned is None else returned
    if not isinstance(names, Iterable) or isinstance(names, (bytes, dict)):
        raise ValueError(f"stage {stage!r}: {hook} must return a stage name or names, got {returned!r}")
    targets = list(dict.fromkeys(names))
    if not targets and not empty_ok:
        raise ValueError(
            f"stage {stage!r}: {hook} returned no targets; it must choose from {sorted(allowed)}, "
            "and a stage that ends requests is terminal"
        )
    unknown = [name for name in targets if name not in allowed]
    if unknown:
        raise ValueError(
            f"stage {stage!r}: {hook} returned targets outside the static topology: {unknown}; "
            f"allowed: {sorted(allowed)}"
        )
    return targets
