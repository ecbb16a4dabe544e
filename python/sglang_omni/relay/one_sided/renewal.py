"""Replaces an engine once no peer can connect to it any more.

UCX closes its listening socket for good when it cannot take a connection, having no file left for one or
getting a network error: connected peers stay connected, others are refused. A new engine then takes over,
with the same memory, under an address that is announced from then on. The one before goes on to serve the
peers that have its address.
"""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sglang_omni.relay.base import RelayError, RelayReadError
from sglang_omni.relay.fd_limit import require_spare_files
from sglang_omni.relay.one_sided.engine import Source, Transfer, TransferEngine
from sglang_omni.relay.one_sided.listening_fds import Listener, listeners, occupy
from sglang_omni.relay.one_sided.slots import Segment, Slots

logger = logging.getLogger(__name__)

# More than a UCX engine begins with, which is about ten.
_FILES = 64


class Renewable(TransferEngine, Protocol):
    """An engine that says when it can be closed."""

    @property
    def is_reading(self) -> bool:
        """True if a read that it has begun may still write to its destination."""
        ...


class _Term:
    """One engine's time: the engine, its listeners, and the memory registered with it."""

    def __init__(self, make: Callable[[], Renewable], segments: Iterable[Segment] = ()) -> None:
        before = listeners()
        self.engine = make()
        self.listeners = listeners() - before
        self.segments: dict[int, Segment] = {}
        self.served_until = float("inf")
        try:
            for segment in segments:
                self.register(segment)
        except MemoryError:
            self.close()
            raise

    def lost(self) -> list[Listener]:
        return [listener for listener in self.listeners if not listener.is_there()]

    def register(self, segment: Segment) -> None:
        self.engine.register(segment)
        self.segments[segment.address] = segment

    def unregister(self, segment: Segment) -> None:
        if self.segments.pop(segment.address, None) is not None:
            self.engine.unregister(segment)

    def close(self) -> None:
        self.listeners = set()
        self.engine.close()


class RenewedEngine:
    """The engine that there is now, and those before it. See ``TransferEngine``.

    Args:
        name: The relay, as the log calls it.
        make: Makes an engine. Raises RelayError if it cannot.
        served_s: For how long after it was announced peers may come to an engine.
    """

    def __init__(self, name: str, make: Callable[[], Renewable], served_s: float) -> None:
        self._name = name
        self._make = make
        self._served_s = served_s
        # Changes of memory and of engines exclude each other; what uses the present engine does not wait.
        self._changing = threading.Lock()
        self._present = _Term(make)
        self._former: list[_Term] = []

    @property
    def has_threads(self) -> bool:
        """See ``TransferEngine``."""
        return self._present.engine.has_threads

    def register(self, segment: Segment) -> None:
        """See ``TransferEngine``."""
        with self._changing:
            self._present.register(segment)

    def unregister(self, segment: Segment) -> None:
        """See ``TransferEngine``."""
        with self._changing:
            for term in (self._present, *self._former):
                term.unregister(segment)

    def address(self) -> dict[str, Any]:
        """See ``TransferEngine``.

        Raises:
            RelayError: The engine has lost its listeners, and there can be no other now.
        """
        return self._reachable().address()

    def read(self, source: Source, into: Slots, *, header_only: bool, notify: bytes) -> Transfer:
        """See ``TransferEngine``. Peers that are read from connect to the reader, too."""
        try:
            engine = self._reachable()
        except RelayError as error:
            raise RelayReadError(str(error)) from error
        return engine.read(source, into, header_only=header_only, notify=notify)

    def knows(self, source: Source) -> bool:
        """See ``TransferEngine``."""
        return not self._present.lost() and self._present.engine.knows(source)

    def notifications(self) -> list[bytes]:
        """See ``TransferEngine``."""
        messages = self._present.engine.notifications()
        if self._former:
            self._close_former()
            for term in list(self._former):
                messages += term.engine.notifications()
        return messages

    def close(self) -> None:
        """See ``TransferEngine``."""
        with self._changing:
            for term in (*self._former, self._present):
                term.close()
            self._former = []

    def _reachable(self) -> Renewable:
        if self._present.lost():
            with self._changing:
                if lost := self._present.lost():
                    self._renew(lost)
        return self._present.engine

    def _renew(self, lost: list[Listener]) -> None:
        try:
            # UCX goes on to take what has the number for its own.
            occupy(lost)
            require_spare_files(_FILES)
            term = _Term(self._make, self._present.segments.values())
        except (RelayError, OSError, MemoryError) as error:
            raise RelayError(
                f"{self._name} cannot be reached by any peer: its engine has closed its port, and "
                f"there can be no other now: {error}"
            ) from error
        logger.warning(
            "%s: its engine has closed the port at which peers connect, as it does after a network error or "
            "if too many files are open (at most %d: ulimit -n). A new engine takes over; payloads "
            "announced before can be lost",
            self._name,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        self._present.served_until = time.monotonic() + self._served_s
        self._former.append(self._present)
        self._present = term

    def _close_former(self) -> None:
        with self._changing:
            now = time.monotonic()
            over = [term for term in self._former if term.served_until <= now and not term.engine.is_reading]
            self._former = [term for term in self._former if term not in over]
        for term in over:
            term.close()
