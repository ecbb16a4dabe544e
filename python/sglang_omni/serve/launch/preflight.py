"""Tells, before anything is loaded, why a server would fail on this system, or its stages on the GPUs."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from sglang_omni import diagnosis
from sglang_omni.gpus import visible_gpus
from sglang_omni.serve.launch.pipelines import LaunchError

if TYPE_CHECKING:
    from sglang_omni.config.plan.pipeline import PipelinePlan

logger = logging.getLogger(__name__)


def check_system() -> None:
    """Check that a server can run on this system.

    Raises:
        LaunchError: It cannot; the text says what can.
    """
    if sys.platform != "linux":
        raise LaunchError(
            "a server needs Linux, whose shared memory its processes use; docs/deploy.md has an image. On "
            "other systems the wheel has the router (sgl-omni route) and the client"
        )


def check_gpus(plan: PipelinePlan) -> None:
    """Check the driver, torch and SGLang's kernels, as far as stages run on GPUs of this host.

    Without GPUs only a driver is looked for, which takes no time. One that does not work is warned of: by
    default, stages then run on the CPU. SGLang's kernels are warned of too: not every stage needs them, and
    those that do end with an error of their own.

    Raises:
        LaunchError: No stage could use its GPU; a line for each reason says what to do.
    """
    placed = [gpu.gpu_id for gpu in plan.placement.gpus.values() if gpu.node is None]
    findings = diagnosis.driver_findings()
    if placed:
        gpus = [gpu for gpu in visible_gpus() if gpu.index in placed]
        findings += diagnosis.torch_findings()
        findings += diagnosis.capability_findings(gpus)
        failures = [finding for finding in findings if finding.status == "fail"]
        if failures:
            lines = "".join(f"\n  {finding}" for finding in failures)
            raise LaunchError(f"no stage can use the GPUs of this machine:{lines}")
        findings += diagnosis.sglang_findings()
    for finding in findings:
        if finding.status != "ok":
            logger.warning("%s", finding)
