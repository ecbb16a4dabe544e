"""How a stage that is full holds back those that send to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Queue
from typing import Any

from sglang_omni.scheduling.queues import Inbox

# Messages in the inbox at which no more are read, and at which reading goes on.
_INBOX_HIGH = 1024
_INBOX_LOW = 256
# Messages whose item is still to be read, at which no more are received, and at which receiving goes on.
_UNREAD_HIGH = 4096
_UNREAD_LOW = 1024
# As for the inbox, in bytes that came through a relay: beyond this, payloads stay with their sender, whose
# credits then run out.
_BYTES_HIGH = 1 << 30
_BYTES_LOW = _BYTES_HIGH // 2
# How often an inbox that cannot notify is checked.
_CHECK_S = 0.005


class Backpressure:
    """The scheduler's inbox, and what waits while it is full.

    Senders in the same process then wait in their edges' queues, and messages of other processes stay unread
    in this stage's. If those hold enough, no more are taken from the sockets. So the senders' queues and
    outboxes fill up, and in the end their schedulers wait. Aborts come another way and never wait.

    Two states change, the inbox's in ``put`` and ``update``, receiving in ``pause_if_full`` and ``update``:

        open ------- at _INBOX_HIGH messages or _BYTES_HIGH --> full
        full ------- at _INBOX_LOW and _BYTES_LOW ------------> open
        receiving -- full, or at _UNREAD_HIGH messages -------> paused
        paused ----- open, and at _UNREAD_LOW: calls resume --> receiving

    Args:
        inbox: The scheduler's.
        unread: Returns how many messages wait to be read.
        resume: Called when receiving goes on.
    """

    def __init__(self, inbox: Queue[Any], unread: Callable[[], int], resume: Callable[[], None]) -> None:
        self._inbox = inbox
        self._unread = unread
        self._resume = resume
        # Bytes of each message in the inbox, in its order; and their sum.
        self._sizes: deque[int] = deque()
        self._nbytes = 0
        self._open = asyncio.Event()
        self._open.set()
        self._paused = False
        self._closed = False

    def put(self, message: Any, nbytes: int = 0) -> None:
        """Hands the scheduler a message that brought ``nbytes`` of memory with it."""
        self._sizes.append(nbytes)
        self._nbytes += nbytes
        self._inbox.put(message)
        waiting = self._forget_taken()
        is_full = waiting >= _INBOX_HIGH or self._nbytes >= _BYTES_HIGH
        if is_full and self._open.is_set() and not self._closed:
            self._open.clear()
            self._watch_inbox()

    async def wait(self) -> None:
        """Returns when the inbox is open."""
        while not self._open.is_set():
            await self._open.wait()

    def pause_if_full(self) -> bool:
        """Pauses receiving if the stage is full. Returns True while receiving is paused."""
        if not self._closed and (not self._open.is_set() or self._unread() >= _UNREAD_HIGH):
            self._paused = True
        return self._paused

    def update(self) -> None:
        """Opens the inbox and resumes receiving, if enough was taken or read."""
        if not self._open.is_set():
            if self._forget_taken() > self._low_level():
                self._watch_inbox()
                return
            self._open.set()
        if self._paused and self._unread() <= _UNREAD_LOW:
            self._paused = False
            self._resume()

    def close(self) -> None:
        """The stage is about to stop: nothing waits for it any more."""
        self._closed = True
        self._paused = False
        self._open.set()

    def _forget_taken(self) -> int:
        """Counts no longer what the scheduler has taken. Returns how many messages are left."""
        waiting = self._inbox.qsize()
        while len(self._sizes) > waiting:
            self._nbytes -= self._sizes.popleft()
        return waiting

    def _low_level(self) -> int:
        """How many messages, the newest ones, may be left in the inbox when it opens again."""
        if self._nbytes <= _BYTES_LOW:
            return _INBOX_LOW
        kept, nbytes = 0, 0
        for size in reversed(self._sizes):
            nbytes += size
            if nbytes > _BYTES_LOW:
                break
            kept += 1
        return min(kept, _INBOX_LOW)

    def _watch_inbox(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self._inbox, Inbox):
            self._inbox.when_low(self._low_level(), partial(_call_soon, loop, self.update))
        else:
            loop.call_later(_CHECK_S, self.update)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    # The scheduler may take its last messages after everything else has ended.
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
