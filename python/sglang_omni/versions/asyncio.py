"""A coroutine's first step at once, and an event loop that other threads act for while it waits.

Written for CPython 3.11, whose documentation names ``_enter_task`` and ``_leave_task`` under "Extending
asyncio", as 3.12 to 3.14's does. From 3.12 on, ``asyncio.Task(..., eager_start=True)`` starts a coroutine
when it makes the task, but a task for each costs what `begin` saves. ``_get_running_loop`` and
``_set_running_loop`` are documented as for event loops, which in all these versions keep timers in
``_scheduled`` and what is to be called in ``_ready``.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from asyncio import _get_running_loop, _set_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any


def begin(coroutine: Coroutine[Any, Any, None], task: asyncio.Task[Any]) -> Begun | None:
    """Runs a coroutine up to its first wait, with ``task`` as the current task.

    No task may be current in the caller. Exceptions of the coroutine are raised.

    Returns:
        The rest, for ``task`` to await; None if the coroutine has ended.
    """
    loop = task.get_loop()
    _enter_task(loop, task)
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    finally:
        _leave_task(loop, task)
    if awaited is not None:
        # No task waits for it yet: until then, another coroutine may await the same future.
        awaited._asyncio_future_blocking = False
    return Begun(coroutine, awaited)


class Begun:
    """The rest of a coroutine that ``begin`` has started, for a task to await.

    Attributes:
        interrupt: If set before it is awaited, thrown into the coroutine at its first wait.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self.coroutine = coroutine
        self.interrupt: BaseException | None = None
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        awaited, interrupt = self._awaited, self.interrupt
        if awaited is not None and interrupt is None:
            awaited._asyncio_future_blocking = True
        try:
            while True:
                if interrupt is None:
                    try:
                        yield awaited
                    except BaseException as exc:  # noqa: BLE001  thrown in by the task, for the coroutine to handle
                        interrupt = exc
                if interrupt is None:
                    awaited = self.coroutine.send(None)
                else:
                    thrown, interrupt = interrupt, None
                    awaited = self.coroutine.throw(thrown)
        except StopIteration:
            return


class SharedEventLoop(asyncio.SelectorEventLoop):
    """An event loop that other threads may act for while it waits for events.

    Who has the turn acts as the loop: no two callbacks ever run beside each other, and the loop is the
    running one for each. The loop has the turn but for the time in which it waits, and takes it before other
    threads once an event has come.

        loop -------- waits: releases the turn, unless something was left ----------> free
        free -------- an event has come: claims the turn, no thread takes it now ---> loop
        free -------- run_here: the calling thread takes it ------------------------> that thread
        that thread - has run all that was left: releases it, and looks once more --> free

    A thread that finds the turn taken leaves its callback. Who has the turn looks for what was left once it
    has released it: so nothing stays behind, and nobody has to be woken for it.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._left: deque[Callable[[], None]] = deque()
        self._claimed = False
        # True if another thread has acted for it since it began to wait.
        self._is_changed = False
        # The time until which it waits for events at most; minus infinity while it does not wait.
        self._waits_until = -math.inf
        super().__init__(_TurnSelector(self))

    def run_forever(self) -> None:
        with self._turn:
            super().run_forever()

    def run_here(self, callback: Callable[[], None]) -> None:
        """Runs a callback in the calling thread if the loop waits, or else soon in the one that has the turn.

        The loop is woken only if the callback leaves it something to do. In a thread that runs a loop of its
        own, this is ``call_soon_threadsafe``.

        Raises:
            RuntimeError: The loop is closed.
        """
        # A loop in debug mode refuses other threads.
        if self.is_closed() or self.get_debug() or _get_running_loop() is not None:
            self.call_soon_threadsafe(callback)
            return
        self._left.append(callback)
        while self._left and not self._claimed and self._turn.acquire(blocking=False):
            self._is_changed = True
            _set_running_loop(self)
            try:
                self._run_left()
                must_wake = self._has_work()
            finally:
                _set_running_loop(None)
                self._turn.release()
            if must_wake:
                self.call_soon_threadsafe(_nothing)

    def _run_left(self) -> None:
        """Runs what was left so far. The calling thread has the turn."""
        for _ in range(len(self._left)):
            callback = self._left.popleft()
            try:
                callback()
            except Exception as exc:  # noqa: BLE001  as a loop does with its callbacks
                self.call_exception_handler({"message": f"Exception in {callback!r}", "exception": exc})

    def _has_work(self) -> bool:
        """True if the loop must not wait as long as it does."""
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        return bool(ready) or (bool(timers) and timers[0].when() < self._waits_until)


class _TurnSelector(selectors.EpollSelector):
    """Releases the loop's turn while it waits for events."""

    def __init__(self, loop: SharedEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        if loop._left:
            loop.call_soon(loop._run_left)
        elif timeout is None or timeout > 0:
            timers = loop._scheduled  # type: ignore[attr-defined]
            loop._waits_until = timers[0].when() if timers else math.inf
            loop._turn.release()
            # What a thread has left that found the turn taken.
            if not loop._left or not loop._turn.acquire(blocking=False):
                return self._wait(timeout)
            loop._waits_until = -math.inf
            loop.call_soon(loop._run_left)
        return super().select(0)

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits without the turn, and takes it again."""
        loop = self._loop
        try:
            events = super().select(timeout)
        finally:
            loop._claimed = True
            loop._turn.acquire()
            loop._claimed = False
            loop._waits_until = -math.inf
        if loop._left:
            loop.call_soon(loop._run_left)
        if loop._is_changed:
            # Another thread may have closed a file meanwhile, and opened one of the same number.
            loop._is_changed = False
            files = self.get_map()
            events = [(key, mask) for key, mask in events if files.get(key.fd) is key]
        return events


def _nothing() -> None:
    """Wakes the loop."""
