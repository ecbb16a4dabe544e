"""What a reader found in a piece of an answer: content, reasoning and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Delta:
    """What a piece of text adds to an answer.

    Attributes:
        content: What the user reads, or hears.
        reasoning: What the model thinks before it answers.
        calls: ``{"index", "id", "name", "arguments"}``; id and name are None in what continues a call.
    """

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def __iadd__(self, later: Delta) -> Delta:
        self.content += later.content
        self.reasoning += later.reasoning
        self.calls += later.calls
        return self


class Calls:
    """The calls of one answer, as they are written.

    Args:
        new_id: Gives the id of a new call.
        limit: Calls beyond this number are dropped; None for no limit.
    """

    def __init__(self, new_id: Callable[[], str], limit: int | None = None) -> None:
        self._new_id = new_id
        self._limit = limit
        self._begun = 0
        self._told: list[tuple[str, str, list[str]]] = []
        self._new: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return self._begun > 0

    @property
    def whole(self) -> list[dict[str, Any]]:
        """All calls so far."""
        return [
            {"index": index, "id": call_id, "name": name, "arguments": "".join(arguments)}
            for index, (call_id, name, arguments) in enumerate(self._told)
        ]

    def begin(self, name: str) -> None:
        self._begun += 1
        if self._is_dropped:
            return
        call_id = self._new_id()
        self._new.append({"index": len(self._told), "id": call_id, "name": name, "arguments": ""})
        self._told.append((call_id, name, []))

    def add(self, arguments: str) -> None:
        """Adds to the arguments of the call that has begun last."""
        if self._is_dropped or not arguments:
            return
        index = len(self._told) - 1
        self._told[index][2].append(arguments)
        if self._new and self._new[-1]["index"] == index:
            self._new[-1]["arguments"] += arguments
        else:
            self._new.append({"index": index, "id": None, "name": None, "arguments": arguments})

    def take(self) -> list[dict[str, Any]]:
        """What is new since the last time."""
        new, self._new = self._new, []
        return new

    @property
    def _is_dropped(self) -> bool:
        return self._limit is not None and self._begun > self._limit
