"""What the factories of every model family need while they load."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_omni.engines.options import Dtype

logger = logging.getLogger(__name__)


def available_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def placement(dtype: Dtype | None, gpu_id: int | None) -> tuple[Dtype, str]:
    """What a component is computed in, and its device: by default float32 on a CPU and bfloat16 on a GPU."""
    if gpu_id is None:
        return dtype or "float32", "cpu"
    return dtype or "bfloat16", f"cuda:{gpu_id}"


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Says in the log how long the block took."""
    began = time.perf_counter()
    yield
    logger.info("loaded %s in %.1f s", what, time.perf_counter() - began)
