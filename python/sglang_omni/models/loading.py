"""Helpers of the stage factories of all model families: cores, placement and load times."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sglang_omni.model_runner.headers import DEVICE, header_report

if TYPE_CHECKING:
    from sglang_omni.engines.options import Dtype, DtypeChoice

logger = logging.getLogger(__name__)


def available_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def placement(dtype: DtypeChoice | None, gpu_id: int | None, stored: str | None = None) -> tuple[Dtype, str]:
    """The dtype and device of a component.

    Args:
        dtype: None or ``"auto"``: float32 on a CPU, and on a GPU bfloat16, or float16 if that is ``stored``.
        gpu_id: The GPU; None for the CPU.
        stored: The dtype that the checkpoint's ``config.json`` names.
    """
    given = None if dtype == "auto" else dtype
    if (report := header_report()) is not None:
        report.device = "cpu" if gpu_id is None else "cuda"
        return given or "float32", DEVICE
    if gpu_id is None:
        return given or "float32", "cpu"
    return given or ("float16" if stored == "float16" else "bfloat16"), f"cuda:{gpu_id}"


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Logs the time that the block takes."""
    began = time.perf_counter()
    yield
    logger.info("loaded %s in %.1f s", what, time.perf_counter() - began)
