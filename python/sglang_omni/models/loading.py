"""What the factories of every model family need while they load."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


def available_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Says in the log how long the block took."""
    began = time.perf_counter()
    yield
    logger.info("loaded %s in %.1f s", what, time.perf_counter() - began)
