"""Runs the first step of a coroutine at once, by parts of asyncio for "third-party task implementations".

Written for CPython 3.11, whose documentation names ``_enter_task`` and ``_leave_task`` under "Extending
asyncio", as 3.12 to 3.14's does. From 3.12 on, ``asyncio.Task(..., eager_start=True)`` starts a coroutine
when it makes the task, but a task for each costs what `begin` saves.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
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
