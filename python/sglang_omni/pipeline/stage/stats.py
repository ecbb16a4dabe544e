"""A stage's numbers for ``/metrics``, sent to the coordinator while they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sglang_omni.proto import StatsMessage
from sglang_omni.scheduling.messages import HasStats

# How far the coordinator is behind, at most, while a stage works.
_INTERVAL_S = 0.05
# After this many reads without a change the numbers have settled: the scheduler's thread may be late.
_QUIET_LOOKS = 2
# While one of these is not zero, numbers may change without an event in the stage's own loop.
_HELD = ("num_running_reqs", "num_queue_reqs", "relay_held_bytes")


class StatsReporter:
    """Reads what a scheduler and relays count, and sends it on if it has changed.

    ``touch`` begins the reading, which ends once the numbers have settled: an idle stage reads nothing.

    Args:
        instance: The reporting instance.
        scheduler: Counts by ``stats()`` if it is a ``HasStats``.
        relays: Count by ``usage()``. Numbers of one name are added up.
        send: Takes a message; called in the event loop's thread.
        requests: Those that the stage has: while there are any, numbers may change.
    """

    def __init__(
        self,
        instance: str,
        scheduler: object,
        relays: Iterable[Any],
        send: Callable[[StatsMessage], None],
        requests: Collection[str] = (),
    ) -> None:
        self._instance = instance
        self._sources: list[Callable[[], Mapping[str, float]]] = [relay.usage for relay in relays]
        if isinstance(scheduler, HasStats):
            self._sources.insert(0, scheduler.stats)
        self._send = send
        self._requests = requests
        self._sent: dict[str, float] = {}
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Reads the numbers soon: something has happened that may change them."""
        self._quiet = 0
        if self._timer is None and self._sources:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)

    def read(self) -> dict[str, float]:
        """The numbers as they are now."""
        stats: dict[str, float] = {}
        for read in self._sources:
            for name, value in read().items():
                stats[name] = stats.get(name, 0) + value
        return stats

    def close(self) -> None:
        """Reads no more."""
        self._sources = []
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        stats = self.read()
        if stats != self._sent:
            self._sent = stats
            self._quiet = 0
            self._send(StatsMessage(self._instance, stats))
        elif not self._requests and not any(stats.get(name) for name in _HELD):
            self._quiet += 1
        self._timer = None
        if self._quiet < _QUIET_LOOKS and self._sources:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)
