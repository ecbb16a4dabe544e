"""Waiting for what a test asserts, however busy the machine is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_PATIENCE_S = 180


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds. Raises TimeoutError after three minutes."""
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)
