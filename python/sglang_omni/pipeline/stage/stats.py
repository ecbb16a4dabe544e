"""A stage's numbers for ``/metrics``, told to the coordinator while they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from sglang_omni.proto import StatsMessage

# How far the coordinator is behind, at most, while a stage works.
_INTERVAL_S = 0.05
# Looks at numbers without a change after which it is over: the scheduler's thread may be late.
_QUIET_LOOKS = 2
# As long as one of these is not zero, something may change that the stage's own loop does not hear of.
_HELD = ("num_running_reqs", "num_queue_reqs", "relay_held_bytes")


class StatsReporter:
    """Reads what a scheduler and relays count, and sends it on where it has changed.

    Nobody looks while nothing happens: ``touch`` begins it, and it ends once the numbers have settled.

    Args:
        stage: The reporting stage's name.
        scheduler: Asked through ``stats()``, a dict of numbers, where it has that.
        relays: Asked through ``usage()``, likewise. What several count under one name is added up.
        send: Takes a message; called in the event loop's thread.
    """

    def __init__(
        self, stage: str, scheduler: Any, relays: Iterable[Any], send: Callable[[StatsMessage], None]
    ) -> None:
        self._stage = stage
        self._sources: list[Callable[[], dict[str, float]]] = [
            read
            for read in (
                getattr(scheduler, "stats", None),
                *(getattr(relay, "usage", None) for relay in relays),
            )
            if read is not None
        ]
        self._send = send
        self._sent: dict[str, float] = {}
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Something has happened that may show in the numbers."""
        self._quiet = 0
        if self._timer is None and self._sources:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)

    def close(self) -> None:
        """Looks no more."""
        self._sources = []
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        stats: dict[str, float] = {}
        for read in self._sources:
            for name, value in read().items():
                stats[name] = stats.get(name, 0) + value
        if stats != self._sent:
            self._sent = stats
            self._quiet = 0
            self._send(StatsMessage(self._stage, stats))
        elif not any(stats.get(name) for name in _HELD):
            self._quiet += 1
        self._timer = None
        if self._quiet < _QUIET_LOOKS and self._sources:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)
