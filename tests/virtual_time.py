"""A stage's scheduler in virtual time: its clock moves only by what its work is said to cost.

So its order of work can be measured to the millisecond on a machine that does other things too.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from queue import Empty, Queue

from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage


class VirtualClock:
    """The time in seconds, which only ``sleep`` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Arrivals(Queue[IncomingMessage]):
    """An inbox whose messages come at set times. A scheduler that waits for one moves the clock on to it."""

    def __init__(self, clock: VirtualClock, when_empty: Callable[[], object]) -> None:
        super().__init__()
        self._clock = clock
        self._when_empty = when_empty
        self._coming: list[tuple[float, int, IncomingMessage]] = []
        self._order = itertools.count()

    def at(self, seconds: float, message: IncomingMessage) -> None:
        heapq.heappush(self._coming, (seconds, next(self._order), message))

    def put(self, item: IncomingMessage, block: bool = True, timeout: float | None = None) -> None:
        self.at(self._clock.now, item)

    def get(self, block: bool = True, timeout: float | None = None) -> IncomingMessage:
        if block and not self._coming:
            self._when_empty()
        if not self._coming or (not block and self._coming[0][0] > self._clock.now):
            raise Empty
        when, _, message = heapq.heappop(self._coming)
        self._clock.now = max(self._clock.now, when)
        return message


class Departures(Queue[OutgoingMessage]):
    """An outbox that tells of each message as it is put out."""

    def __init__(self, tell: Callable[[OutgoingMessage], object]) -> None:
        super().__init__()
        self._tell = tell

    def put(self, item: OutgoingMessage, block: bool = True, timeout: float | None = None) -> None:
        self._tell(item)
