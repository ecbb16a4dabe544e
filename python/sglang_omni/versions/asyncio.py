"""Parts of asyncio that its documentation leaves to "third-party task implementations".

Written for CPython 3.11, whose documentation names ``_enter_task`` and ``_leave_task`` under "Extending
asyncio", as 3.12 to 3.14's does. From 3.12 on, ``asyncio.Task(..., eager_start=True)`` begins a coroutine in
the call that makes its task, but makes a task for each, which costs what `begin` saves.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any


def begin(coroutine: Coroutine[Any, Any, None], task: asyncio.Task[Any]) -> Begun | None:
    """Runs a coroutine up to its first wait, with ``task`` as the current one; none may be current.

    Returns:
        The rest, for ``task`` to await; None if the coroutine has ended.

    Raises:
        Exception: What the coroutine raised.
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
        # No task has it yet: another coroutine may await the same future until then.
        awaited._asyncio_future_blocking = False
    return Begun(coroutine, awaited)


class Begun:
    """The rest of a coroutine that waits for what it yielded, for a task to await.

    Attributes:
        interrupt: Thrown into the coroutine in place of what it waits for, if set before it is awaited.
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
                    except BaseException as exc:  # noqa: BLE001  thrown in by the task: the coroutine's to handle
                        interrupt = exc
                if interrupt is None:
                    awaited = self.coroutine.send(None)
                else:
                    thrown, interrupt = interrupt, None
                    awaited = self.coroutine.throw(thrown)
        except StopIteration:
            return
