"""The ledger of a relay's unread puts: their credits, their tickets, and the tasks that wait for either.

An edge has credit for so many bytes under way and waits for its own readers only. A ticket is one
reader's right to one payload. Its number is never used twice, so an old number gets an error and not another
payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from sglang_omni._core import CreditLedger
from sglang_omni.relay.base import RelayError, RelayTimeout, WaitingPut, is_of

# Seconds after which an unread payload is given up.
KEEP_SECONDS = 300.0
# Waiting for credit, look so often at what has expired meanwhile.
_LOOK_AGAIN_SECONDS = 1.0

_numbers = itertools.count(secrets.randbits(62))


class Ticket:
    """A payload for one reader.

    Attributes:
        number: Unique among all tickets of this process.
        source: What the payload lies in; None once the ticket is over.
        state: How it stands: "taken" by its reader, "revoked" by a cleanup, "expired", or still "ready".
    """

    def __init__(self, source: Any, nbytes: int, edge: str, amount: int, key: str, expires: float) -> None:
        self.number = next(_numbers)
        self.source = source
        self.nbytes = nbytes
        self.edge = edge
        self.amount = amount
        self.key = key
        self.expires = expires
        self.state: Literal["ready", "taken", "revoked", "expired"] = "ready"


class PutLedger:
    """The sending half of a relay. Any thread may call; several event loops may wait.

    Args:
        name: The relay, as error texts call it.
        limit: Bytes an edge may have under way.
        timeout: Seconds to wait for credit.
        keep: Seconds after which an unread payload is given up.
        on_given_up: Called with the source of a ticket that ended unread.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        timeout: float,
        keep: float = KEEP_SECONDS,
        on_given_up: Callable[[Any], None] = lambda source: None,
    ) -> None:
        self._name = name
        self._ledger = CreditLedger(limit)
        self._timeout = timeout
        self._keep = keep
        self._on_given_up = on_given_up
        self._lock = threading.Lock()
        self._tickets: dict[int, Ticket] = {}
        self._offered_bytes = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._waiting: set[WaitingPut] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tickets)

    # --- sending ---------------------------------------------------------------------------------

    async def take_credit(self, edge: str, amount: int, key: str) -> None:
        """Wait until the edge has credit for ``amount`` bytes, and take it.

        Raises:
            RelayTimeout: It had none in time; the text names the target that holds it.
            RelayRevoked: The request has ended meanwhile.
        """
        if self._ledger.take(edge, amount):
            return
        self._ledger.note_wait(edge)
        put = WaitingPut(key)
        with self._lock:
            self._waiting.add(put)
        try:
            await self._wait_for_credit(edge, amount, put)
        finally:
            with self._lock:
                self._waiting.discard(put)

    async def _wait_for_credit(self, edge: str, amount: int, put: WaitingPut) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            changed = self._next_change()
            try:
                put.check()
                if self._ledger.take(edge, amount):
                    return
                if not await _wait(changed, min(deadline, time.monotonic() + _LOOK_AGAIN_SECONDS)):
                    self.expire()
                if time.monotonic() >= deadline:
                    raise RelayTimeout(
                        f"{self._name}: no credit for {put.key!r} after {self._timeout:g} s: "
                        f"{edge or 'its target'!r} has {self._ledger.held(edge)} of {self._ledger.limit} "
                        "bytes that it has not read. It must read, or its requests be aborted, or the relay "
                        "have more credits"
                    )
            finally:
                self._waiters.discard(changed)

    def return_credit(self, edge: str, amount: int) -> None:
        """Give back what ``take_credit`` took and no ticket was issued for."""
        self._ledger.give_back(edge, amount)
        self._wake()

    def issue(self, source: Any, nbytes: int, edge: str, amount: int, key: str) -> Ticket:
        """A ticket for what lies in ``source``, with credit that was taken."""
        ticket = Ticket(source, nbytes, edge, amount, key, time.monotonic() + self._keep)
        with self._lock:
            if not self._closed:
                self._tickets[ticket.number] = ticket
                self._offered_bytes += nbytes
                return ticket
        self.return_credit(edge, amount)
        raise RelayError(f"{self._name} is closed")

    async def wait_for(self, ticket: Ticket, timeout: float) -> None:
        """Return when the ticket is over.

        Raises:
            RelayTimeout: It was not read within ``timeout`` seconds.
            RelayError: The relay was closed, or the payload was given up unread.
        """
        deadline = time.monotonic() + timeout
        while ticket.state == "ready":
            changed = self._next_change()
            try:
                if ticket.state == "ready" and not await _wait(changed, deadline):
                    raise RelayTimeout(
                        f"{self._name}: {ticket.key!r} was not read by {ticket.edge or 'its target'!r} "
                        f"within {timeout:g} s"
                    )
            finally:
                self._waiters.discard(changed)
        if ticket.state == "expired":
            raise RelayTimeout(
                f"{self._name}: {ticket.key!r} was given up: {ticket.edge or 'its target'!r} did not read it "
                f"within {self._keep:g} s"
            )

    # --- ends ------------------------------------------------------------------------------------

    def ticket(self, number: int) -> Ticket | None:
        """The ticket of that number, unless it is over."""
        return self._tickets.get(number)

    def finish(self, number: int) -> bool:
        """End a ticket whose payload has been read. False if it was over already, or never was."""
        with self._lock:
            ticket = self._tickets.get(number)
            if ticket is not None:
                self._end(ticket, "taken")
        self._wake()
        return ticket is not None

    def revoke(self, key: str) -> int:
        """Take back what is under way for a request's id, or under a key, and end the puts that wait for
        credit; returns how many tickets that were."""
        with self._lock:
            tickets = [ticket for ticket in self._tickets.values() if is_of(ticket.key, key)]
            for ticket in tickets:
                self._end(ticket, "revoked")
            for put in self._waiting:
                put.is_revoked |= is_of(put.key, key)
        self._wake()
        return len(tickets)

    def expire(self) -> int:
        """Give up payloads that were not read in time; returns how many."""
        now = time.monotonic()
        with self._lock:
            # All are kept for the same time, so the first is the next to expire.
            late = list(itertools.takewhile(lambda t: t.expires <= now, self._tickets.values()))
            for ticket in late:
                self._end(ticket, "expired")
        if late:
            self._wake()
        return len(late)

    def close(self) -> None:
        """End all tickets and fail the tasks that wait."""
        with self._lock:
            self._closed = True
            for ticket in list(self._tickets.values()):
                self._end(ticket, "revoked")
        self._wake()

    def _end(self, ticket: Ticket, state: Literal["taken", "revoked", "expired"]) -> None:
        del self._tickets[ticket.number]
        ticket.state = state
        if state != "taken":
            self._on_given_up(ticket.source)
        ticket.source = None
        self._ledger.give_back(ticket.edge, ticket.amount)

    # --- waiting ---------------------------------------------------------------------------------

    def _next_change(self) -> asyncio.Future[None]:
        if self._closed:
            raise RelayError(f"{self._name} is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiters.add(future)
        return future

    def _wake(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for future in waiters:
            with contextlib.suppress(RuntimeError):  # Its loop is closed, and the task with it.
                future.get_loop().call_soon_threadsafe(_set, future)

    # --- numbers ---------------------------------------------------------------------------------

    def stats(self) -> dict[str, dict[str, int]]:
        """Per edge: bytes under way, and how often a put had to wait."""
        return {edge: {"held": held, "waited": waited} for edge, held, waited in self._ledger.snapshot()}

    def usage(self) -> dict[str, int]:
        """Numbers for ``/metrics``."""
        edges = self._ledger.snapshot()
        return {
            "relay_held_bytes": sum(held for _, held, _ in edges),
            "relay_held_slots": len(self._tickets),
            "relay_written_bytes_total": self._offered_bytes,
            "relay_waits_total": sum(waited for _, _, waited in edges),
        }


class Put:
    """A payload under way; complete once its reader has it."""

    def __init__(self, puts: PutLedger, ticket: Ticket, metadata: dict[str, Any]) -> None:
        self._puts = puts
        self._ticket = ticket
        self.metadata = metadata

    @property
    def is_complete(self) -> bool:
        """True if the reader has it, or it was taken back."""
        return self._ticket.state != "ready"

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Return when the reader has the payload or a cleanup took it back.

        Args:
            timeout: Seconds.

        Raises:
            RelayTimeout: It was not read in time, or was given up unread.
            RelayError: The relay was closed.
        """
        await self._puts.wait_for(self._ticket, timeout)


class Got:
    """A finished read."""

    is_complete = True

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Return at once: the read is over."""


async def _wait(changed: asyncio.Future[None], deadline: float) -> bool:
    """True if it changed before the deadline."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        return False
    await asyncio.wait([changed], timeout=remaining)
    return changed.done()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
