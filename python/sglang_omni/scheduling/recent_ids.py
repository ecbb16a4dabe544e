"""A bounded set of request ids."""

from __future__ import annotations

from collections import OrderedDict


class RecentIds:
    """The last ``limit`` ids added.

    Late messages of an aborted or finished request are recognised by its id. The set is bounded because it
    must not grow with the number of requests ever served.
    """

    def __init__(self, limit: int = 10_000) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, request_id: str) -> None:
        self._ids[request_id] = None
        self._ids.move_to_end(request_id)
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)

    def discard(self, request_id: str) -> None:
        self._ids.pop(request_id, None)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)
