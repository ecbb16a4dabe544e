"""Allocations of other processes that are open here, each once, however many loans lie in it.

To open one costs the driver a system call and a change of the GPU's page tables, and the allocations
that torch cuts tensors from are few. One that no loan needs any more stays open for a moment, because the
next loan is likely to lie in it again. Only for a moment: while it is open, its memory does not come back
to the GPU when its owner frees it, and its owner may end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sglang_omni.relay.shm.cuda_driver import CudaDriver, CudaError

logger = logging.getLogger(__name__)

# What stays open without a loan: how many, each of which at most how large, for how long.
MAX_IDLE = 32
MAX_IDLE_BYTES = 64 << 20
IDLE_SECONDS = 2.0

# The handle alone could come again for other memory at the same place, so the number of the allocation in its
# process is part of it.
Key = tuple[int, bytes, int]


@dataclass(slots=True)
class OpenAllocation:
    """An allocation that is open here.

    Attributes:
        key: Device, the driver's handle, and the allocation's number in its own process.
        start: Its address here.
        nbytes: Its size.
        loans: Loans that lie in it.
        idle_since: When the last loan ended.
    """

    key: Key
    start: int
    nbytes: int
    loans: int = 0
    idle_since: float = 0.0


class CudaMappings:
    """The open allocations of this process. Any thread may call.

    Args:
        driver: Opens and closes them; every call is made with the device's context.
        later: ``later(seconds, step)`` calls ``step`` in a thread.
    """

    def __init__(self, driver: CudaDriver, later: Callable[[float, Callable[[], None]], None]) -> None:
        self._driver = driver
        self._later = later
        self._lock = threading.Lock()
        self._open: dict[Key, OpenAllocation] = {}
        # In the order in which their last loans ended.
        self._idle: OrderedDict[Key, OpenAllocation] = OrderedDict()
        self._closes_later = False

    def take(self, device: int, handle: bytes, number: int) -> OpenAllocation:
        """Opens an allocation, unless it is open, for one more loan. ``give_back`` must follow.

        Raises:
            CudaError: The driver refuses.
        """
        key = (device, handle, number)
        with self._lock:
            mapping = self._open.get(key)
            if mapping is None:
                # The same handle under another number: what it was for is freed, and must go first.
                for old in [old for known, old in self._idle.items() if known[:2] == key[:2]]:
                    self._close(old)
                with self._driver.on(device):
                    start = self._driver.open_memory(handle)
                    try:
                        _, nbytes = self._driver.allocation(start)
                    except BaseException:
                        self._driver.close_memory(start)
                        raise
                mapping = self._open[key] = OpenAllocation(key, start, nbytes)
            self._idle.pop(key, None)
            mapping.loans += 1
            return mapping

    def give_back(self, mapping: OpenAllocation) -> None:
        """Ends one loan, which the GPU must have finished with.

        Raises:
            CudaError: The driver refuses to close an allocation.
        """
        with self._lock:
            mapping.loans -= 1
            if mapping.loans:
                return
            if mapping.nbytes > MAX_IDLE_BYTES:
                self._close(mapping)
                return
            mapping.idle_since = time.monotonic()
            self._idle[mapping.key] = mapping
            if len(self._idle) > MAX_IDLE:
                self._close(next(iter(self._idle.values())))
            if not self._closes_later:
                self._closes_later = True
                self._later(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        with self._lock:
            self._closes_later = False
            now = time.monotonic()
            for mapping in list(self._idle.values()):
                left = mapping.idle_since + IDLE_SECONDS - now
                if left > 0:
                    self._closes_later = True
                    self._later(left, self._close_idle)
                    return
                try:
                    self._close(mapping)
                except CudaError as error:
                    logger.error("Another process's memory was not closed properly: %s", error)

    def _close(self, mapping: OpenAllocation) -> None:
        del self._open[mapping.key]
        self._idle.pop(mapping.key, None)
        with self._driver.on(mapping.key[0]):
            self._driver.close_memory(mapping.start)
