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
from collections.abc import Callable

from sglang_omni._core import checksum

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
