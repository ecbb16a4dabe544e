"""An event loop whose time moves on only when nothing is left to do: a minute of waiting costs nothing.

What runs in it must start no threads: another thread's work takes none of its time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

_T = TypeVar("_T")
# Some time after zero, which code may take for "never".
_BEGIN_S = 1000.0


class Stuck(RuntimeError):
    """No timer is left and nothing is ready, but what runs has not ended."""


class _SkippingSelector(selectors.DefaultSelector):
    """Instead of waiting, it puts the clock forward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = _BEGIN_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Stuck("nothing is left to happen")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its ``time`` is virtual, in seconds."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in a new ``VirtualLoop``, whose time is ``time.monotonic`` meanwhile.

    Raises:
        Stuck: It waits for what cannot happen any more.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        with mock.patch.object(time, "monotonic", loop.time):
            return runner.run(main)
