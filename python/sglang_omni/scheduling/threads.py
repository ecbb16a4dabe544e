"""Runs blocking loops side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait


def run_together(loops: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Runs every loop in a thread of its own until all have returned.

    The first exception calls ``stop``, which must end the other loops, and is then raised.
    """
    with ThreadPoolExecutor(len(loops), thread_name_prefix="worker") as pool:
        running = [pool.submit(loop) for loop in loops]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failures = [error for future in done if (error := future.exception()) is not None]
        if failures:
            stop()
    if failures:
        raise failures[0]
