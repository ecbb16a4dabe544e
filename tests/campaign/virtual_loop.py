"""An event loop whose time moves on only when nothing is left to do: a minute of waiting costs nothing.

What runs in it must start no threads: another thread's work takes none of its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from sglang_omni.pipeline.coordinator import instances
from sglang_omni.pipeline.stage import requests
from sglang_omni.relay import put_ledger

_T = TypeVar("_T")
# What reads the clock itself. Not all of the process does so by the virtual one: another thread's
# event loop would wait for as long as the two differ.
_READERS: tuple[ModuleType, ...] = (instances, requests, put_ledger)
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
    """Runs a coroutine in a new ``VirtualLoop``, by whose time coordinator, stages and relay go meanwhile.

    Raises:
        Stuck: It waits for what cannot happen any more.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, contextlib.ExitStack() as patched:
        clock = SimpleNamespace(**{**vars(time), "monotonic": runner.get_loop().time})
        for module in _READERS:
            patched.enter_context(mock.patch.object(module, "time", clock))
        return runner.run(main)
