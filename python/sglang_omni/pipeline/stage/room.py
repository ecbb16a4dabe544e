"""Whether a stage has room for more work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from queue import Queue
from typing import Any

from sglang_omni.scheduling.queues import Inbox

# Messages waiting for the scheduler, at which no more are received, and at which receiving goes on.
_INBOX_HIGH = 1024
_INBOX_LOW = 256
# The same for messages whose payload is still to be read.
_UNREAD_HIGH = 4096
_UNREAD_LOW = 1024
# How often an inbox that cannot say when it runs low is looked at.
_CHECK_S = 0.005


class Room:
    """Who is in front of a full stage has to wait.

    A sender in the same process waits in its lane; messages of other processes are left in the socket.
    So the senders' lanes and outboxes fill up, and in the end it is their schedulers that wait.
    Aborts come another way and never wait.

    Args:
        inbox: The scheduler's.
        unread: How many messages wait for their payload to be read.
        on_room: Called when there is room again.
    """

    def __init__(
        self, inbox: Queue[Any], unread: Callable[[], int], on_room: Callable[[], None] = lambda: None
    ) -> None:
        self._inbox = inbox
        self._unread = unread
        self._on_room = on_room
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._closed = False

    def is_full(self) -> bool:
        """Whether to send no more; ``on_room`` is called when that changes."""
        if not self._is_open.is_set():
            return True
        if self._closed or (self._inbox.qsize() < _INBOX_HIGH and self._unread() < _UNREAD_HIGH):
            return False
        self._is_open.clear()
        self._watch_inbox()
        return True

    async def wait(self) -> None:
        """Returns when there is room."""
        if self.is_full():
            await self._is_open.wait()

    def check(self) -> None:
        """To be called when a message has been read."""
        if self._is_open.is_set():
            return
        if self._inbox.qsize() > _INBOX_LOW:
            self._watch_inbox()
        elif self._unread() <= _UNREAD_LOW:
            self._is_open.set()
            self._on_room()

    def close(self) -> None:
        """The stage is about to stop: nobody waits for it any more."""
        self._closed = True
        self._is_open.set()

    def _watch_inbox(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self._inbox, Inbox):
            self._inbox.when_low(_INBOX_LOW, partial(_call_soon, loop, self.check))
        else:
            loop.call_later(_CHECK_S, self.check)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    # The scheduler may take its last messages after everything else has ended.
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
