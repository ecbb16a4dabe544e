"""Tells which payloads of a fan-out can be handed over as objects: those no other stage's changes reach."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sglang_omni.proto import StagePayload

_MUTABLE = (dict, list, set, bytearray)


def isolated_targets(
    payloads: Sequence[tuple[str, StagePayload]], output: Any, candidates: Collection[str]
) -> set[str]:
    """The candidates that may get the object itself: what one does to it, no other target sees.

    Args:
        payloads: Each target of the fan-out with its payload.
        output: The scheduler's output, which the payloads are projected from.
    """
    isolated = set()
    for i, (target, payload) in enumerate(payloads):
        if target in candidates:
            others = [other for j, (_, other) in enumerate(payloads) if j != i]
            if not others or (payload is not output and has_own_container(payload, [*others, output])):
                isolated.add(target)
    return isolated


def has_own_container(projected: Any, others: Iterable[Any]) -> bool:
    """True if ``projected`` is a StagePayload whose data shares no mutable container with ``others``.

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
