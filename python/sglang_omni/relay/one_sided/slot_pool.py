"""A pool of slots in memory that is registered with a transfer engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from sglang_omni._core import Extents
from sglang_omni.relay.one_sided.engine import TransferEngine
from sglang_omni.relay.one_sided.slots import SLOT_BYTES, Segment, Slots, slots_for


class SlotPool:
    """Registered memory of ``nbytes``, made when it is first used. Any thread may call.

    Args:
        nbytes: Its size. What does not fit gets registered memory of its own.
        engine: The engine that the memory is registered with.
        on_returned: Called, from whatever thread and inside of anything, where memory of a payload's own can
            be given up by ``collect``.
    """

    def __init__(self, nbytes: int, engine: TransferEngine, on_returned: Callable[[], None]) -> None:
        self._slots = max(1, nbytes // SLOT_BYTES)
        self._engine = engine
        self._on_returned = on_returned
        self._extents = Extents(self._slots * SLOT_BYTES)
        self._pool: Segment | None = None
        # Filled where objects die, which may be in any thread and inside of anything: no lock there.
        self._returned: deque[tuple[Segment, int, int]] = deque()
        self._making = threading.Lock()

    def take(self, nbytes: int) -> Slots:
        """Room for a payload of ``nbytes``.

        Raises:
            MemoryError: There is no memory for it.
        """
        pooled = self.take_pooled(nbytes)
        if pooled is not None:
            return pooled
        count = slots_for(nbytes)
        return Slots(self._make(count), 0, count, self._free, own=True)

    def take_pooled(self, nbytes: int) -> Slots | None:
        """Slots of the pool for a payload of ``nbytes``, or None if the pool has no room."""
        self.collect()
        count = slots_for(nbytes)
        if count > self._slots or (extent := self._extents.allocate(count * SLOT_BYTES)) is None:
            return None
        with self._making:
            if self._pool is None:
                self._pool = self._make(self._slots)
        return Slots(self._pool, extent[0] // SLOT_BYTES, count, self._free)

    def collect(self) -> None:
        """Make use of what has come back; memory of a payload's own is given up."""
        while True:
            try:
                segment, first, count = self._returned.popleft()
            except IndexError:
                return
            if segment is self._pool:
                self._extents.release(first * SLOT_BYTES, count * SLOT_BYTES)
            else:
                self._engine.unregister(segment)

    def _free(self, segment: Segment, first: int, count: int) -> None:
        self._returned.append((segment, first, count))
        if segment is not self._pool:
            self._on_returned()

    def _make(self, slots: int) -> Segment:
        try:
            segment = Segment(slots)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryError(f"no memory for {slots * SLOT_BYTES} bytes: {error}") from error
        self._engine.register(segment)
        return segment
