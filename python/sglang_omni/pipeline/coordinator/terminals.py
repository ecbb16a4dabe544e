"""Which terminal stages answer a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_omni.proto import OmniRequest

TerminalStagesResolver = Callable[[OmniRequest], Sequence[str] | None]


def terminals_of(
    request: OmniRequest | Any, allowed: frozenset[str], resolver: TerminalStagesResolver | None
) -> frozenset[str]:
    """The stages whose results make up this request's result.

    Raises:
        ValueError: ``resolver`` returned something else than a non-empty part of ``allowed``, or None for
            all of them.
    """
    if resolver is None:
        return allowed
    names = resolver(request if isinstance(request, OmniRequest) else OmniRequest(inputs=request))
    if names is None:
        return allowed
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"terminal_stages_resolver must return a non-empty sequence of terminal stage names, or None "
            f"for all of them; got {names!r}"
        )
    unknown = sorted(set(names) - allowed)
    if unknown:
        raise ValueError(
            f"terminal_stages_resolver returned stages outside the static terminal stages: {unknown}; "
            f"allowed: {sorted(allowed)}"
        )
    return frozenset(names)
