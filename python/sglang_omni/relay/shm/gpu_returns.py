"""Memory given back to other processes once the GPU has finished with it.

A GPU may still read what the CPU has let go of: kernels and copies run behind the program that queued
them. Waiting for that in the thread that dropped a tensor would hold up a scheduler.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import cache, partial

logger = logging.getLogger(__name__)

_Step = Callable[[], None]


def when_gpu_is_done(device: int, give_back: _Step) -> None:
    """Call ``give_back``, in a thread, when all that ``device`` was given so far is done.

    May be called from a destructor.
    """
    _returns().put((device, give_back))


@cache
def _returns() -> queue.SimpleQueue[tuple[int, _Step]]:
    returns: queue.SimpleQueue[tuple[int, _Step]] = queue.SimpleQueue()
    threading.Thread(target=_run, args=(returns,), name="gpu-returns", daemon=True).start()
    return returns


def _run(returns: queue.SimpleQueue[tuple[int, _Step]]) -> None:
    import torch

    while True:
        due = [returns.get()]
        while not returns.empty():
            due.append(returns.get())
        # A GPU that has failed finishes nothing any more; its process will hear of it elsewhere, too.
        for device in {device for device, _ in due}:
            _try(partial(torch.cuda.synchronize, device))
        while due:
            _try(due.pop()[1])


def _try(step: _Step) -> None:
    try:
        step()
    except RuntimeError as error:
        logger.error("Another process's memory was not given back properly: %s", error)
