"""Whether payloads of a fan-out can be handed over as objects without one stage seeing another's changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from sglang_omni.proto import StagePayload

_MUTABLE = (dict, list, set, bytearray)


def has_own_container(projected: Any, others: Iterable[Any]) -> bool:
    """Whether ``projected`` is a StagePayload whose data shares no mutable container with ``others``.

    Tensors and arrays may be shared: receivers treat them as read-only by contract.
    """
    if not isinstance(projected, StagePayload):
        return False
    mine = set(_containers(projected.data))
    if not mine:
        return False
    return all(
        other is not projected
        and mine.isdisjoint(_containers(other.data if isinstance(other, StagePayload) else other))
        for other in others
    )


def _containers(root: Any) -> Iterator[int]:
    """The identities of all mutable containers reachable from ``root``."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _MUTABLE):
            yield id(item)
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif is_dataclass(item) and not isinstance(item, type):
            yield id(item)
            stack.extend(getattr(item, field.name) for field in fields(item))
