"""The queues between a scheduler's threads and its stage's event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue, SimpleQueue
from typing import TypeVar

_T = TypeVar("_T")


class Inbox(Queue[_T]):
    """A ``queue.Queue`` that wakes its reader in half the time. ``task_done`` and ``join`` do not work."""

    def __init__(self) -> None:
        super().__init__()
        self._items: SimpleQueue[_T] = SimpleQueue()
        self._low: tuple[int, Callable[[], None]] | None = None

    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        self._items.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        item = self._items.get(block, timeout)
        if self._low is not None:
            self._tell_low()
        return item

    def when_low(self, level: int, notify: Callable[[], None]) -> None:
        """Calls ``notify`` once when at most ``level`` items are left, in the thread that takes one."""
        self._low = level, notify
        self._tell_low()

    def _tell_low(self) -> None:
        low = self._low
        if low is not None and self._items.qsize() <= low[0]:
            self._low = None
            low[1]()

    def qsize(self) -> int:
        return self._items.qsize()

    def empty(self) -> bool:
        return self._items.empty()


class Outbox(Inbox[_T]):
    """An ``Inbox`` that notifies its reader of items, and makes threads wait that fill it too fast.

    Args:
        limit: At so many items, ``put`` waits until the listener has taken some. Without a listener, or in
            the listener's own thread, it never waits.
    """

    def __init__(self, limit: int = 1024) -> None:
        super().__init__()
        self._limit = limit
        self._notify: Callable[[], None] | None = None
        self._notified = False
        # True while one thread puts what belongs together.
        self._held = False
        self._listener: int | None = None
        self._room = threading.Condition()
        self._waiting = 0

    def listen(self, notify: Callable[[], None]) -> None:
        """Calls ``notify``, in the thread that puts, for the first item after each ``take``.

        The calling thread becomes the listener, which takes the items.
        """
        self._listener = threading.get_ident()
        self._notify = notify
        if not self.empty():
            self._notified = True
            notify()

    def unlisten(self) -> None:
        """Removes the listener: from now on no thread is notified or waits for room."""
        with self._room:
            self._listener = self._notify = None
            self._room.notify_all()

    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        if self._items.qsize() >= self._limit and self._must_wait():
            self._held = False
            self._notify_once()
            with self._room:
                self._waiting += 1
                self._room.wait_for(lambda: self._items.qsize() < self._limit or not self._must_wait())
                self._waiting -= 1
        self._items.put(item)
        if not self._held:
            self._notify_once()

    @contextmanager
    def together(self) -> Iterator[None]:
        """The listener is notified of what is put inside at the end, so that it takes all of it at once.

        One thread at a time may be inside. What another puts meanwhile is notified with it.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if not self.empty():
                self._notify_once()

    def take(self, most: int) -> list[_T]:
        """Takes up to ``most`` items. If it returns fewer, the next one will be notified."""
        # Cleared first: every item from now on is either taken below or notified.
        self._notified = False
        items: list[_T] = []
        try:
            while len(items) < most:
                items.append(self._items.get_nowait())
        except Empty:
            pass
        # Waiting threads are woken when half of the queue is free, not for every few items.
        if self._waiting and self._items.qsize() <= self._limit // 2:
            with self._room:
                self._room.notify_all()
        return items

    def _notify_once(self) -> None:
        notify = self._notify
        if notify is not None and not self._notified:
            self._notified = True
            notify()

    def _must_wait(self) -> bool:
        return self._listener is not None and self._listener != threading.get_ident()
