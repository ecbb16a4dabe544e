"""The thread that drives a transfer engine, and does nothing while nothing is under way."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from sglang_omni.relay.base import RelayError, RelayTimeout
from sglang_omni.relay.one_sided.engine import TransferEngine
from sglang_omni.relay.one_sided.slot_pool import SlotPool
from sglang_omni.relay.put_ledger import PutLedger

logger = logging.getLogger(__name__)

# The engine is looked at again after this part of the time it has been quiet for, so that waiting adds
# little to what it takes anyway and a peer that does nothing costs little.
_QUIET_PART = 1 / 8
_LONGEST_PAUSE = 1e-3
# Below this a pause is only a chance for other threads.
_SHORTEST_PAUSE = 50e-6
# Of an engine with threads of its own: looking at it more often only takes their processor from them.
_THREADS_PAUSE = 250e-6
# Seconds between looks at transfers that no caller waits for any more.
_QUARANTINE_PAUSE = 0.1
_JOIN_SECONDS = 10.0

Steps = Generator[None, None, None]
"""A read: ends when it is over, raises if it failed, and holds its destination until then."""


class _Read(NamedTuple):
    steps: Steps
    future: Future[None]
    deadline: float
    late: RelayTimeout


class Pump:
    """Steps reads, finishes tickets that peers report as read, and gives up expired ones.

    Attributes:
        pools: Where memory comes back to.
    """

    def __init__(self, name: str, engine: TransferEngine, ledger: PutLedger) -> None:
        self.pools: Sequence[SlotPool] = ()
        self.is_closed = False
        self._name = name
        self._engine = engine
        self._ledger = ledger
        # Held while in the engine: by the thread, or by a caller that begins a read.
        self._driving = threading.Lock()
        self._inbox: queue.SimpleQueue[_Read | None] = queue.SimpleQueue()
        self._reads: list[_Read] = []
        # Reads that timed out or were cancelled, and that may still write to their destination.
        self._abandoned: list[Steps] = []
        # Memory that must be kept, and until when.
        self._kept: deque[tuple[float, object]] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # A process that ends must end the thread first: an engine is no place to be in at exit.
        atexit.register(self.close)

    @property
    def quarantined(self) -> int:
        """Destinations that may still be written to though their reads have failed."""
        return len(self._abandoned)

    def run(self, steps: Steps, timeout: float, sender: str) -> Future[None]:
        """Run a read to its end, at once and beside others. Its first step is taken in this call if possible.

        The future fails as the read does, or with RelayTimeout. Cancelled or too late, the read is still
        run to its end, however long that takes.
        """
        future: Future[None] = Future()
        late = RelayTimeout(
            f"{self._name}: {sender} is stopped or far too slow: what it announced was not read within "
            f"{timeout:g} s"
        )
        read = _Read(steps, future, time.monotonic() + timeout, late)
        if not self._begin(read):
            self._inbox.put(read)
            self.wake()
        return future

    def _begin(self, read: _Read) -> bool:
        """Take the first step, unless another thread is in the engine; True if the read is over."""
        if not self._driving.acquire(blocking=False):
            return False
        try:
            return not self.is_closed and _advance(read)
        finally:
            self._driving.release()

    def wake(self) -> None:
        """There is something to wait for."""
        with self._lock:
            if self._thread is None and not self.is_closed:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self.nudge()

    def nudge(self) -> None:
        """Look at the pools. May be called inside of anything: it takes no lock."""
        self._inbox.put(None)

    def keep(self, memory: object, seconds: float) -> None:
        """Let ``memory`` exist, and peers that read be served, for so long. It is always the same time."""
        self._kept.append((time.monotonic() + seconds, memory))
        self.nudge()

    def close(self) -> None:
        """Fail all reads, end the thread and the engine."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            thread = self._thread
        atexit.unregister(self.close)
        if thread is None:
            with self._driving:
                self._engine.close()
            return
        self.nudge()
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            logger.error("%s: its engine has not stopped within %g s", self._name, _JOIN_SECONDS)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._drive()
        except Exception:
            logger.exception("%s: its engine has failed, and it is closed", self._name)
            self.is_closed = True
            self._ledger.close()
        self._end()

    def _drive(self) -> None:
        active = time.monotonic()
        while not self.is_closed:
            events = self._take_in(time.monotonic() - active)
            with self._driving:
                events += self._step()
                events += self._hear()
            events += self._ledger.expire()
            if events:
                active = time.monotonic()
            while self._kept and self._kept[0][0] <= time.monotonic():
                self._kept.popleft()
            for pool in self.pools:
                pool.collect()

    def _take_in(self, quiet: float) -> int:
        """Wait for work for as long as there is nothing better to do; how much came."""
        least = _THREADS_PAUSE if self._engine.has_threads else 0.0
        pause: float | None = min(max(least, quiet * _QUIET_PART), _LONGEST_PAUSE)
        if not self._reads and not self._ledger and not self._kept:
            pause = _QUARANTINE_PAUSE if self._abandoned else None
        try:
            if pause is not None and pause < _SHORTEST_PAUSE:
                time.sleep(0)
                read = self._inbox.get_nowait()
            else:
                read = self._inbox.get(timeout=pause)
        except queue.Empty:
            return 0
        if read is not None:
            self._reads.append(read)
        return 1

    def _step(self) -> int:
        """Go on with every read; how many ended."""
        now, going = time.monotonic(), []
        for read in self._reads:
            if _advance(read):
                continue
            if read.future.cancelled() or now >= read.deadline:
                self._abandoned.append(read.steps)
                _fail(read.future, read.late)
            else:
                going.append(read)
        ended = len(self._reads) - len(going)
        self._reads = going
        self._abandoned = [steps for steps in self._abandoned if not _is_over(steps)]
        return ended

    def _hear(self) -> int:
        messages = self._engine.notifications()
        for message in messages:
            if len(message) > 20 or not message.isdigit() or not self._ledger.finish(int(message)):
                logger.debug(
                    "%s: received %r, which ends nothing that is under way", self._name, message[:40]
                )
        return len(messages)

    def _end(self) -> None:
        # First the engine: until it is closed it may write to what the reads hold.
        with self._driving:
            self._engine.close()
        self._abandoned = []
        self._kept.clear()
        while True:
            try:
                read = self._inbox.get_nowait()
            except queue.Empty:
                break
            if read is not None:
                self._reads.append(read)
        for read in self._reads:
            _fail(read.future, RelayError(f"{self._name} was closed"))
        self._reads = []


def _fail(future: Future[None], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _advance(read: _Read) -> bool:
    """Take one step; True if the read is over."""
    try:
        next(read.steps)
    except StopIteration:
        if read.future.set_running_or_notify_cancel():
            read.future.set_result(None)
    except Exception as error:  # noqa: BLE001  the caller of the read gets it
        if isinstance(error, RelayError):
            _drop_frames(error)
        _fail(read.future, error)
    else:
        return False
    return True


def _drop_frames(error: BaseException) -> None:
    """Forget where an error came from: its text says what there is to know.

    The frames have the engine's own objects, and an engine listens until the last of them is gone: an error
    that is kept would keep a closed relay's port open.
    """
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__


def _is_over(steps: Steps) -> bool:
    try:
        next(steps)
    except Exception:  # noqa: BLE001  StopIteration or a failure: either way the read is over, and its caller has left
        return True
    return False
