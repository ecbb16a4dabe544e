"""Page-locked parts of shared memory, so that copies between it and a GPU are direct.

A copy to or from ordinary memory goes through a buffer of the driver's and waits for it; one to or
from locked pages is a single transfer. An arena is a large range of addresses of which few have
memory behind them, so only what a copy is about to touch is locked, a chunk at a time.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from sglang_omni.relay.shm.cuda_driver import CudaError, cuda_driver

logger = logging.getLogger(__name__)

# Locking costs a system call and the pages of the whole chunk, paid once; 32 MiB take milliseconds.
CHUNK_BYTES = 32 << 20
# Below this the driver's own buffer is as fast, so that memory only ever used for less stays as it is.
PIN_FROM_BYTES = 64 << 10


class Mapping(Protocol):
    """A mapped range of memory, mapped for as long as this object lives."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_used_elsewhere(self) -> bool:
        """True if anything but this object still needs the mapping."""
        ...


class PinnedMemory:
    """What this process has locked. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: dict[int, Mapping] = {}
        # Of each mapping, the locked chunks and the device in whose context that was done.
        self._pinned: dict[int, dict[int, int]] = {}
        self._refused = False
        # Starts of mappings that this process may only read, and of those that cannot be locked for that.
        self._read_only: set[int] = set()
        self._refused_read_only: set[int] = set()

    def add(self, mapping: Mapping, *, read_only: bool = False) -> None:
        """Allow ``pin`` to lock the parts of ``mapping`` that copies touch.

        It stays mapped until ``remove``, or until one is added when nothing else needs it any more:
        locked memory must be unlocked before it is unmapped.

        Args:
            read_only: This process may not write to its pages.
        """
        with self._lock:
            if mapping.address in self._mappings:
                return
            for start in [s for s, known in self._mappings.items() if not known.is_used_elsewhere]:
                self._remove(start)
            self._mappings[mapping.address] = mapping
            if read_only:
                self._read_only.add(mapping.address)
            self._pinned[mapping.address] = {}

    def remove(self, mapping: Mapping) -> None:
        """Unlock what is locked of it. Must come before its memory is unmapped."""
        with self._lock:
            self._remove(mapping.address)

    def pin(self, address: int, nbytes: int, *, device: int) -> list[tuple[int, int]]:
        """Lock a range before it is copied from or to.

        Returns:
            ``(address, nbytes)`` of the pieces to copy one by one: no single copy may run over the
            edge of two locked ranges. Memory that cannot be locked, or was never added, is copied
            just the same, only slower.
        """
        with self._lock:
            mapping = self._find(address)
            if mapping is None or nbytes < PIN_FROM_BYTES:
                return [(address, nbytes)]
            first = (address - mapping.address) // CHUNK_BYTES
            last = (address + nbytes - 1 - mapping.address) // CHUNK_BYTES
            self._pin_chunks(mapping, range(first, last + 1), device)
            edges = [mapping.address + chunk * CHUNK_BYTES for chunk in range(first + 1, last + 1)]
            starts = [address, *edges]
            ends = [*edges, address + nbytes]
            return [(start, end - start) for start, end in zip(starts, ends, strict=True)]

    def is_pinned(self, address: int, nbytes: int) -> bool:
        """True if ``pin`` has nothing left to do, also because locking is refused."""
        if self._refused or nbytes < PIN_FROM_BYTES:
            return True
        with self._lock:
            mapping = self._find(address)
            if mapping is None:
                return False
            if mapping.address in self._refused_read_only:
                return True
            offset = address - mapping.address
            chunks = range(offset // CHUNK_BYTES, (offset + nbytes - 1) // CHUNK_BYTES + 1)
            pinned = self._pinned[mapping.address]
            return all(chunk in pinned for chunk in chunks)

    def _find(self, address: int) -> Mapping | None:
        for start, mapping in self._mappings.items():
            if start <= address < start + mapping.nbytes:
                return mapping
        return None

    def _pin_chunks(self, mapping: Mapping, chunks: range, device: int) -> None:
        pinned = self._pinned[mapping.address]
        missing = [chunk for chunk in chunks if chunk not in pinned]
        if not missing or self._refused or mapping.address in self._refused_read_only:
            return
        read_only = mapping.address in self._read_only
        try:
            driver = cuda_driver()
            with driver.on(device):
                for chunk in missing:
                    offset = chunk * CHUNK_BYTES
                    nbytes = min(CHUNK_BYTES, mapping.nbytes - offset)
                    driver.page_lock(mapping.address + offset, nbytes, read_only=read_only)
                    pinned[chunk] = device
        except CudaError as error:
            if read_only:
                self._refused_read_only.add(mapping.address)
                logger.warning(
                    "Shared memory of another process cannot be page-locked as read-only, so copies from it "
                    "to the GPU take a detour: %s. Unset SGLANG_OMNI_RELAY_READ_ONLY, which is for debugging",
                    error,
                )
                return
            self._refused = True
            logger.warning(
                "Shared memory cannot be page-locked, so copies between it and the GPU take a detour: %s. "
                "Raise the limit on locked memory (`ulimit -l unlimited`, in a container `--ulimit "
                "memlock=-1`) and start again",
                error,
            )

    def _remove(self, start: int) -> None:
        if self._mappings.pop(start, None) is None:
            return
        self._read_only.discard(start)
        self._refused_read_only.discard(start)
        for chunk, device in self._pinned.pop(start).items():
            driver = cuda_driver()
            with driver.on(device):
                driver.page_unlock(start + chunk * CHUNK_BYTES)


_memory = PinnedMemory()


def pinned_memory() -> PinnedMemory:
    """This process's locked memory: locking belongs to the process, not to a relay."""
    return _memory
