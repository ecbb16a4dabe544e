"""Whether a stage has room for more work."""

from __future__ import annotations

import asyncio
from collections import deque
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
# The same for the bytes that came through a relay with the messages in the inbox: what takes more than
# this is left with its sender, whose credits then run out.
_BYTES_HIGH = 1 << 30
_BYTES_LOW = _BYTES_HIGH // 2
# How often an inbox that cannot say when it runs low is looked at.
_CHECK_S = 0.005


class Room:
    """The scheduler's inbox, and who has to wait in front of it.

    While the inbox is full, senders in the same process wait in their lanes, and so does what came from
    other processes, unread. What is more than the lanes are to hold is left in the socket. So the senders'
    lanes and outboxes fill up, and in the end it is their schedulers that wait. Aborts come another way and
    never wait.

    Args:
        inbox: The scheduler's.
        unread: How many messages wait for their payload to be read.
        on_room: Called when more may be received, after ``may_receive`` was False.
    """

    def __init__(
        self, inbox: Queue[Any], unread: Callable[[], int], on_room: Callable[[], None] = lambda: None
    ) -> None:
        self._inbox = inbox
        self._unread = unread
        self._on_room = on_room
        # Bytes of each message in the inbox, the next one to be taken first; and their sum.
        self._sizes: deque[int] = deque()
        self._nbytes = 0
        # Set while the inbox takes more.
        self._is_open = asyncio.Event()
        self._is_open.set()
        # Set while more is to be received.
        self._is_receiving = asyncio.Event()
        self._is_receiving.set()
        self._closed = False

    def put(self, message: Any, nbytes: int = 0) -> None:
        """Hands the scheduler a message that brought ``nbytes`` of memory with it."""
        self._sizes.append(nbytes)
        self._nbytes += nbytes
        self._inbox.put(message)

    async def wait(self) -> None:
        """Returns when the inbox takes more."""
        while self._is_full():
            await self._is_open.wait()

    def may_receive(self) -> bool:
        """Whether more is to be received; where it is not, ``on_room`` is called once it is."""
        if not self._closed and (self._is_full() or self._unread() >= _UNREAD_HIGH):
            self._is_receiving.clear()
        return self._is_receiving.is_set()

    async def wait_to_receive(self) -> None:
        """Returns when more is to be received."""
        await self._is_receiving.wait()

    def check(self) -> None:
        """To be called when a message has been read."""
        if not self._is_open.is_set():
            if self._inbox.qsize() > self._low_level():
                self._watch_inbox()
                return
            self._is_open.set()
        if not self._is_receiving.is_set() and self._unread() <= _UNREAD_LOW:
            self._is_receiving.set()
            self._on_room()

    def close(self) -> None:
        """The stage is about to stop: nobody waits for it any more."""
        self._closed = True
        self._is_open.set()
        self._is_receiving.set()

    def _is_full(self) -> bool:
        if not self._is_open.is_set():
            return True
        if self._closed or (self._inbox.qsize() < _INBOX_HIGH and self._waiting_bytes() < _BYTES_HIGH):
            return False
        self._is_open.clear()
        self._watch_inbox()
        return True

    def _waiting_bytes(self) -> int:
        waiting = self._inbox.qsize()
        while len(self._sizes) > waiting:
            self._nbytes -= self._sizes.popleft()
        return self._nbytes

    def _low_level(self) -> int:
        """How many messages, the newest ones, may be left in the inbox when receiving goes on."""
        if self._waiting_bytes() <= _BYTES_LOW:
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
            self._inbox.when_low(self._low_level(), partial(_call_soon, loop, self.check))
        else:
            loop.call_later(_CHECK_S, self.check)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    # The scheduler may take its last messages after everything else has ended.
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
