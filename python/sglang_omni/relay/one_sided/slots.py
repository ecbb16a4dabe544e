"""Memory that a transfer engine reads from and writes to: a pool of slots, each with a generation.

A payload takes as many adjacent slots as it needs. Before the payload lies a header with the generation
under which it was written; it is wiped before the slots are given to anything else. So a reader that
finds, after it has read a payload, the header it was promised knows that nothing was written there meanwhile.
A small payload also has a checksum, which says as much of what was read together with the header.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang_omni._core import Extents, checksum

if TYPE_CHECKING:
    from sglang_omni.relay.one_sided.engine import TransferEngine

SLOT_BYTES = 64 << 10
# Keeps payloads aligned as the payload format wants them.
HEADER_BYTES = 64

# Up to here two checksums cost less time than a second transfer: between 1 and 4 MiB (measured over nixl).
CHECKED_BYTES = 2 << 20

_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"sglomni\x01"
# Starts anywhere: what a process of an earlier run has announced means nothing in a later one.
_generations = itertools.count(secrets.randbits(62))


class Segment:
    """Memory of ``slots`` slots of ``slot_bytes`` bytes each."""

    def __init__(self, slots: int, slot_bytes: int = SLOT_BYTES) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.nbytes = slots * slot_bytes
        self._memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.memory = memoryview(self._memory)


class Slots:
    """Adjacent slots of a segment. They are free again when this object is gone.

    Attributes:
        own: The segment was allocated for this payload (the pool was full) and is unregistered when
            the payload is freed.
        start: Address of the header.
        checksum: Of header and payload, once that is complete; None of a large one.
    """

    checksum: int | None = None

    def __init__(
        self,
        segment: Segment,
        first: int,
        count: int,
        free: Callable[[Segment, int, int], None],
        *,
        own: bool = False,
    ) -> None:
        self.own = own
        self.segment = segment
        self.first = first
        self.count = count
        self.generation = next(_generations)
        self.start = segment.address + first * segment.slot_bytes
        self._free = free
        self._header = (ctypes.c_char * HEADER_BYTES).from_address(self.start)

    @property
    def address(self) -> int:
        """Address of the payload."""
        return self.start + HEADER_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes taken: header, payload and the rest of the last slot."""
        return self.count * self.segment.slot_bytes

    def seal(self, nbytes: int) -> None:
        """Say that a payload of ``nbytes`` is complete."""
        _HEADER.pack_into(self._header, 0, _MAGIC, self.generation, nbytes)
        if nbytes <= CHECKED_BYTES:
            self.checksum = self._checksum(nbytes)

    def wipe(self) -> None:
        """Make the header that of no payload."""
        ctypes.memset(self.start, 0, HEADER_BYTES)

    def holds(self, generation: int, nbytes: int, checksum: int | None) -> bool:
        """True if the header is this payload's and, given a checksum, all of the payload is here."""
        if _HEADER.unpack_from(self._header) != (_MAGIC, generation, nbytes):
            return False
        return checksum is None or self._checksum(nbytes) == checksum

    def _checksum(self, nbytes: int) -> int:
        return checksum(self._view(0, HEADER_BYTES + nbytes))

    def buffer(self, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        """The payload as a writable buffer, which keeps the slots for as long as anything views it."""
        buffer = (ctypes.c_char * nbytes).from_address(self.address)
        buffer.slots = self  # type: ignore[attr-defined]
        return buffer

    def payload(self, nbytes: int) -> memoryview:
        """The payload as a writable buffer, for as long as the caller keeps the slots."""
        return self._view(HEADER_BYTES, nbytes)

    def _view(self, offset: int, nbytes: int) -> memoryview:
        start = self.start - self.segment.address + offset
        return self.segment.memory[start : start + nbytes]

    def __del__(self) -> None:
        self.wipe()
        self._free(self.segment, self.first, self.count)


def slots_for(nbytes: int) -> int:
    """How many slots a payload takes."""
    return -(-(nbytes + HEADER_BYTES) // SLOT_BYTES)


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
