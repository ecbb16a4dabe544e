"""A bounded set of request ids."""

from __future__ import annotations

from collections import OrderedDict


class RecentIds(OrderedDict[str, None]):
    """The last ``limit`` ids added.

    Late messages of an aborted or finished request are recognised by its id. The set is bounded because it
    must not grow with the number of requests ever served.
    """

    def __init__(self, limit: int = 10_000) -> None:
        super().__init__()
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self._limit = limit

    def add(self, request_id: str) -> None:
        self[request_id] = None
        self.move_to_end(request_id)
        if len(self) > self._limit:
            self.popitem(last=False)

    def discard(self, request_id: str) -> None:
        self.pop(request_id, None)
