"""The threads beside a stage's event loop: the scheduler's own, and one for an outbox that cannot notify."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from sglang_omni.scheduling.messages import OutgoingMessage, Scheduler
from sglang_omni.scheduling.queues import Outbox
from sglang_omni.scheduling.threads import use_gpu

logger = logging.getLogger(__name__)

# Ends the thread that fills the outbox.
_STOP: Any = None


class SchedulerThreads:
    """Runs a scheduler, brings its messages into the event loop, and notices if it crashes.

    Args:
        stage: The stage's name.
        scheduler: Its scheduler.
        gpu_id: N of the ``cuda:N`` that it computes on; None on the CPU.

    Attributes:
        outbox: The scheduler's messages: its own outbox if that can notify, else one that a thread fills.
        crashed: Made by ``start``; gets the exception if the scheduler's ``start`` raises.
    """

    crashed: asyncio.Future[BaseException]

    def __init__(self, stage: str, scheduler: Scheduler, gpu_id: int | None = None) -> None:
        self._stage = stage
        self._gpu_id = gpu_id
        self._scheduler = scheduler
        own = scheduler.outbox
        self.outbox: Outbox[OutgoingMessage] = own if isinstance(own, Outbox) else Outbox()
        self._running: threading.Thread | None = None
        self._filling: threading.Thread | None = None

    def start(self) -> None:
        """Called in the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self.crashed = self._loop.create_future()
        self._running = self._start(self._run, "scheduler")
        if self.outbox is not self._scheduler.outbox:
            self._filling = self._start(self._fill_outbox, "outbox")

    async def join(self, timeout: float) -> None:
        """After the scheduler's ``stop``: waits for the threads' ends, at most ``timeout`` seconds each."""
        if self._running is not None and not await _joined(self._running, timeout):
            logger.warning("Stage %s: the scheduler is still busy after %g s", self._stage, timeout)
        if self._filling is not None:
            self._scheduler.outbox.put(_STOP)
            await _joined(self._filling, timeout)

    def _start(self, work: Callable[[], None], label: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"{self._stage}-{label}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            use_gpu(self._gpu_id)
            self._scheduler.start()
        except BaseException as exc:
            logger.exception("Scheduler thread of stage %s crashed", self._stage)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_crash, exc)

    def _on_crash(self, exc: BaseException) -> None:
        if not self.crashed.done():
            self.crashed.set_result(exc)

    def _fill_outbox(self) -> None:
        """Moves what the scheduler emits from a queue that cannot notify to the one that can."""
        own = self._scheduler.outbox
        while (out := own.get()) is not _STOP:
            self.outbox.put(out)
            del out  # Or an idle stage would hold on to the memory of its last payload.


async def _joined(thread: threading.Thread, timeout: float) -> bool:
    await asyncio.to_thread(thread.join, timeout)
    return not thread.is_alive()
