"""Waiting for what a test asserts, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

# Bounds every wait for what must happen; what is tested is that it happens.
PATIENCE = 240.0


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds. Raises TimeoutError after four minutes."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


def wait_until(holds: Callable[[], Any], otherwise: str | Callable[[], str]) -> None:
    """Raises AssertionError with ``otherwise`` where it does not hold within four minutes."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise() if callable(otherwise) else otherwise)
        time.sleep(0.02)


async def rounds(count: int = 100) -> None:
    """Let the event loop go round ``count`` times, so that all that is ready, or becomes so, has run.

    Before an assertion that something did not happen: it counts for as much on a slow machine.
    """
    for _ in range(count):
        await asyncio.sleep(0)
