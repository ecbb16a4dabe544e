"""Schedulers in a thread of their own, as stages run them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

WAIT_S = 60
SchedulerT = TypeVar("SchedulerT", bound=Any)


@contextmanager
def running(scheduler: SchedulerT) -> Iterator[SchedulerT]:
    """Ends the thread in the end, and insists that it does."""
    thread = threading.Thread(target=scheduler.start)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()
