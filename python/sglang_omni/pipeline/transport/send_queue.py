"""Shared by the ``ipc://`` and ``tcp://`` senders: calls that wait for room, and the time after ``close``."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from sglang_omni.pipeline.transport.base import ControlPlaneClosed
from sglang_omni.pipeline.transport.limits import LINGER_S

_T = TypeVar("_T")


class WaitingSenders(Generic[_T]):
    """Calls of ``send`` that wait for room in a full queue, each with its item, in order."""

    def __init__(self) -> None:
        self._items: OrderedDict[asyncio.Future[None], _T] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    async def wait(self, item: _T) -> None:
        """Returns when ``admit`` has taken the item. Raises ControlPlaneClosed after ``close``."""
        room = asyncio.get_running_loop().create_future()
        self._items[room] = item
        try:
            await room
        finally:
            self._items.pop(room, None)

    def admit(self, has_room: Callable[[], bool], enqueue: Callable[[_T], None]) -> None:
        """Enqueues the items there is room for; their senders go on."""
        while self._items and has_room():
            room, item = self._items.popitem(last=False)
            if not room.done():  # the sender has not given up
                enqueue(item)
                room.set_result(None)

    def close(self) -> None:
        for room in self._items:
            if not room.done():
                room.set_exception(ControlPlaneClosed())
        self._items.clear()


class Linger:
    """The time between a sender's ``close`` and its end, for its last messages to leave."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()

    def begin(self, name: str, leave: Callable[[], None]) -> None:
        """Calls ``leave`` after ``LINGER_S``, and makes ``asyncio.run`` wait for ``end``."""
        self._loop.call_later(LINGER_S, leave)
        self._loop.create_task(self._wait(), name=name)

    def end(self) -> bool:
        """Ends it. Returns False if it had ended before."""
        if self._over.done():
            return False
        self._over.set_result(None)
        return True

    async def _wait(self) -> None:
        while not self._over.done():
            try:
                await asyncio.shield(self._over)
            except asyncio.CancelledError:
                pass  # it ends by itself, soon
