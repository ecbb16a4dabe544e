"""Who used the machine's cores meanwhile: a server, the program that asks it, or others."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]
from soak_samples import ProcessSampler


@dataclass(frozen=True)
class Shares:
    """Cores in the mean of some time.

    Attributes:
        seconds: That time.
    """

    seconds: float
    server: float
    asking: float
    others: float

    @property
    def left(self) -> float:
        """The cores that the server had or could have had."""
        return (os.cpu_count() or 1) - self.asking - self.others

    def __str__(self) -> str:
        return (
            f"{self.server:.2f} cores of {self.left:.2f} that were left by asking "
            f"({self.asking:.2f}) and by others ({self.others:.2f})"
        )


class Meter:
    """Measures from its making on."""

    def __init__(self, sampler: ProcessSampler) -> None:
        self._sampler = sampler
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        times = psutil.cpu_times()
        busy = sum(times[:3]) + times.irq + times.softirq
        return time.monotonic(), self._sampler.cpu_seconds, time.process_time(), busy

    async def read(self) -> Shares:
        await self._sampler.sample()
        seconds, server, asking, busy = (
            now - then for now, then in zip(self._now(), self._began, strict=True)
        )
        others = max(0.0, busy - server - asking)
        return Shares(seconds, server / seconds, asking / seconds, others / seconds)
