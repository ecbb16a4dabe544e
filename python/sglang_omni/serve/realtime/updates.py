"""Updates of which a part is wrong: it is left out, and the rest is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.config import MERGED, SessionConfig

# An update with more wrong parts is left out as a whole: each costs a reading of all.
_MOST_FAULTS = 16


def done_in_part(
    update: dict[str, Any], do: Callable[[dict[str, Any]], SessionConfig]
) -> tuple[SessionConfig | None, list[RequestError]]:
    """What ``do`` makes of the parts of an update that are right, None if there are none, and what is wrong.

    A part is a field of the session, of ``audio.input`` or of ``audio.output``.

    Args:
        do: Raises a RequestError whose ``param`` begins with ``session.`` and the part that is wrong.
    """
    faults: list[RequestError] = []
    while True:
        try:
            return do(update), faults
        except RequestError as exc:
            faults.append(exc)
            left = _without(update, (exc.param or "").removeprefix("session.").split("."))
            if not left or not _has_parts(left) or len(faults) == _MOST_FAULTS:
                return None, faults
            update = left


def _without(update: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    """The update without the part to which the path leads; None if it has none there."""
    name = path[0].partition("[")[0]
    if name not in update:
        return None
    value = update[name]
    if name not in MERGED or not isinstance(value, dict) or len(path) == 1:
        return {other: value for other, value in update.items() if other != name}
    inner = _without(value, path[1:])
    return None if inner is None else {**update, name: inner}


def _has_parts(update: dict[str, Any]) -> bool:
    return any(
        _has_parts(value) if name in MERGED and isinstance(value, dict) else True
        for name, value in update.items()
    )
