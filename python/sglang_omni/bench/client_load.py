"""True if the measuring client was itself too busy to measure."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Sequence

from sglang_omni.bench.summary import percentile

_EVERY_S = 0.02
# Beyond this the loop waits for itself now and then, and times are of the client as much as of the server.
_BUSY = 0.8


class ClientLoad:
    """What a run costs this process: its share of a core, and how late its event loop is."""

    def __init__(self) -> None:
        self._lags = [0.0]
        self._began, self._cpu = time.perf_counter(), _cpu_s()

    async def watch(self) -> None:
        """Measures until it is cancelled."""
        while True:
            due = time.perf_counter() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self._lags.append(max(0.0, time.perf_counter() - due))

    def done(self, late: Sequence[float]) -> dict[str, float]:
        """Its figures, at the end of the run.

        Args:
            late: How many seconds after it was due each request was sent.
        """
        seconds = time.perf_counter() - self._began
        return {
            "client_core_share": (_cpu_s() - self._cpu) / seconds,
            "client_p99_loop_lag_ms": 1e3 * percentile(sorted(self._lags), 99),
            "client_p99_sent_late_ms": 1e3 * percentile(sorted([0.0, *late]), 99),
        }


def told(figures: dict[str, float]) -> str:
    """A line about them."""
    share, lag = figures["client_core_share"], figures["client_p99_loop_lag_ms"]
    line = (
        f"client: {share:.0%} of a core; p99 its loop was {lag:.1f} ms late, and requests were sent "
        f"{figures['client_p99_sent_late_ms']:.1f} ms after they were due"
    )
    if share > _BUSY:
        line += (
            "\nwarning: the client was too busy, and these times are its own as well; start several with less"
        )
    return line


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
