"""Checks of where a stage's hooks send a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


def checked_targets(
    returned: Any, allowed: Collection[str], *, stage: str, hook: str, empty_ok: bool = False
) -> list[str]:
    """The stage names a routing hook returned, in order and each once.

    Args:
        returned: A name, or names.
        allowed: The names the pipeline's configuration leaves to choose from.
        stage: The stage the hook belongs to.
        hook: The hook's name, for the error.
        empty_ok: Whether no name at all is an answer.

    Raises:
        ValueError: ``returned`` is not a name or names, or not among ``allowed``.
    """
    names = [returned] if isinstance(returned, str) else returned
    if not isinstance(names, Iterable) or isinstance(names, (bytes, dict)):
        raise ValueError(f"{hook} of stage {stage!r} must return a stage name or names, got {returned!r}")
    targets = list(dict.fromkeys(names))
    if not targets and not empty_ok:
        raise ValueError(f"{hook} of stage {stage!r} returned no target; choose from {sorted(allowed)}")
    unknown = [name for name in targets if name not in allowed]
    if unknown:
        raise ValueError(
            f"{hook} of stage {stage!r} returned targets outside the static topology: {unknown}; "
            f"allowed: {sorted(allowed)}"
        )
    return targets
