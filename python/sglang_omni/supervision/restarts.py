"""When a process that has died is started again: with growing delays, and while its budget lasts."""

from __future__ import annotations

import math
from collections import deque

FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0


class Restarts:
    """Counts the deaths of one process and decides about its next start.

    Each death doubles the delay before the restart, from half a second up to half a minute.

    Args:
        max_restarts: Deaths within the window after which the process is still restarted. 0: not even after
            the first; None: after any number.
        window_s: Seconds after which a death is forgotten.
        first_at_once: Restart without a delay after the first death within the window.
    """

    def __init__(
        self, *, max_restarts: int | None = None, window_s: float = math.inf, first_at_once: bool = False
    ) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._free_deaths = 1 if first_at_once else 0
        self._deaths: deque[float] = deque()

    @property
    def deaths(self) -> int:
        """Deaths that are not forgotten."""
        return len(self._deaths)

    def after_death(self, now: float) -> float | None:
        """Count a death.

        Args:
            now: Its time: seconds of a clock that never goes back.

        Returns:
            Seconds to wait before the restart; None if the budget is spent.
        """
        self._deaths.append(now)
        while self._deaths[0] < now - self._window_s:
            self._deaths.popleft()
        if self._max_restarts is not None and self.deaths > self._max_restarts:
            return None
        doublings = self.deaths - 1 - self._free_deaths
        return 0.0 if doublings < 0 else min(FIRST_DELAY_S * 2 ** min(doublings, 10), _LONGEST_DELAY_S)

    def forget(self) -> None:
        """Forget all deaths: the process has been up for long enough."""
        self._deaths.clear()
