"""Waits until a server has swept its connections, rather than for a time in which it may have."""

from __future__ import annotations

import time

from waiting import until

from sglang_omni.serve.launch.connections import Connections


async def swept_after(connections: Connections, seconds: float) -> None:
    """Return after a sweep at least so much later: what has less time is closed by then."""
    begun, sweeps = time.monotonic(), []
    cut_slow = connections._cut_slow

    def last_of_a_sweep(now: float) -> None:
        cut_slow(now)
        sweeps.append(now)

    connections._cut_slow = last_of_a_sweep  # type: ignore[method-assign]
    await until(lambda: any(now >= begun + seconds for now in sweeps))
    connections._cut_slow = cut_slow  # type: ignore[method-assign]
