"""Has a stage compute something small before it reports that it is ready, so that no caller waits for it.

The first steps on a GPU compile kernels, choose algorithms and load libraries, for seconds to minutes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable

from sglang_omni.gpu_faults import after_failure
from sglang_omni.scheduling.messages import HasWarmUp, Scheduler

logger = logging.getLogger(__name__)

# "1": also on a CPU; "0": not even on a GPU.
SETTING = "SGLANG_OMNI_WARM_UP"


def warm_up(stage: str, schedulers: Iterable[Scheduler], *, on_gpu: bool, is_rank: bool) -> None:
    """Warms the schedulers up that can be, on a GPU, or as the environment's ``SGLANG_OMNI_WARM_UP`` says.

    A failure is logged, and the stage goes on: its first request may be slow.

    Args:
        is_rank: Other processes compute the same together with this one. They would wait for a rank that has
            failed, so that its failure is raised.

    Raises:
        GpuLost: The GPU cannot be used after a failure.
    """
    if os.environ.get(SETTING, "1" if on_gpu else "0") != "1":
        return
    for scheduler in schedulers:
        if not isinstance(scheduler, HasWarmUp):
            continue
        began = time.perf_counter()
        try:
            scheduler.warm_up()
        except Exception as exc:
            if is_rank:
                raise
            after_failure(exc)
            logger.warning("Stage %s: its warm-up failed, the first request may be slow", stage, exc_info=exc)
        else:
            logger.info("Stage %s is warm after %.1f s", stage, time.perf_counter() - began)
