"""What a server's processes have over time, as a file of rows, and whether any of it grows."""

from __future__ import annotations

import contextlib
import csv
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
import psutil  # type: ignore[import-untyped]
from launched_server import Roles
from traces import traces_of

# The first part of a run, or of a process's life in it, in which it may grow.
WARM_UP_SHARE = 1 / 3
GROWTH_MB_PER_MINUTE = 1.0
# Processes that were seen for less than this after that say nothing of growth.
SHORTEST_LIFE_S = 600.0
# A connection that its peer has closed is closed here within this time.
LONGEST_CLOSE_WAIT_S = 30.0
COUNTS = ("descriptors", "threads", "memfds")


@dataclass(frozen=True)
class Sample:
    """Of one process at one time: seconds since the start, its role and id, bytes, counts, seconds of CPU."""

    seconds: float
    role: str
    pid: int
    private: int
    shared: int
    descriptors: int
    threads: int
    memfds: int
    close_wait: int
    cpu: float

    @classmethod
    def of_row(cls, row: dict[str, str]) -> Self:
        numbers = {name: int(row[name]) for name in (*COUNTS, "pid", "private", "shared", "close_wait")}
        return cls(seconds=float(row["seconds"]), role=row["role"], cpu=float(row["cpu"]), **numbers)


def read_samples(file: Path) -> list[Sample]:
    with file.open(newline="") as rows:
        return [Sample.of_row(row) for row in csv.DictReader(rows)]


class ProcessSampler:
    """Writes samples of a server's processes to a file while it goes on.

    Attributes:
        samples: All of them.
        problems: Connections that stayed in CLOSE_WAIT.
    """

    def __init__(self, roles: Roles, file: Path) -> None:
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self._roles = roles
        self._began = time.monotonic()
        self._out = file.open("w", newline="", buffering=1)
        self._rows = csv.DictWriter(self._out, [field.name for field in fields(Sample)])
        self._rows.writeheader()
        # Of each connection in CLOSE_WAIT, since when; infinite once that is a problem.
        self._closing: dict[tuple[int, object, object], float] = {}
        self._first_cpu: dict[int, float] = {}
        self._last_cpu: dict[int, float] = {}

    @property
    def cpu_seconds(self) -> float:
        """What all processes have used since they were first seen, those that have ended too."""
        return sum(self._last_cpu.values()) - sum(self._first_cpu.values())

    async def sample(self) -> list[Sample]:
        """Adds a sample of each process. Returns them."""
        added = []
        for role, process in (await self._roles.present()).items():
            # It may end at any moment.
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                added.append(self._sample(role, process))
        self.samples += added
        self._rows.writerows(map(asdict, added))
        return added

    def _sample(self, role: str, process: psutil.Process) -> Sample:
        now = time.monotonic()
        closing = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_CLOSE_WAIT]
        known = {(process.pid, each.laddr, each.raddr) for each in closing}
        for gone in [key for key in self._closing if key[0] == process.pid and key not in known]:
            del self._closing[gone]
        for key in known:
            if now - self._closing.setdefault(key, now) > LONGEST_CLOSE_WAIT_S:
                self.problems.append(f"{role}: {key[1:]} stays in CLOSE_WAIT")
                self._closing[key] = float("inf")
        times = process.cpu_times()
        cpu = times.user + times.system
        self._first_cpu.setdefault(process.pid, cpu)
        self._last_cpu[process.pid] = cpu
        return Sample(
            seconds=round(now - self._began, 1),
            role=role,
            pid=process.pid,
            close_wait=len(closing),
            cpu=round(cpu, 2),
            **asdict(traces_of(process.pid)),
        )


@dataclass(frozen=True)
class Growth:
    """Of one process, from the end of its warm-up to its end.

    Attributes:
        minutes: How long that is.
        private: Megabytes a minute: the median slope between two samples, which one step does not move.
        shared: The same of shared memory.
        more: Of ``COUNTS``, by how many the second half has more than the first; see ``_more``.
    """

    role: str
    pid: int
    minutes: float
    private: float
    shared: float
    more: dict[str, int]

    @property
    def problems(self) -> list[str]:
        found = [f"{self.role} ({self.pid}) has {n} {name} more" for name, n in self.more.items() if n > 0]
        if self.private >= GROWTH_MB_PER_MINUTE:
            found.append(f"{self.role} ({self.pid}) grows by {self.private:.2f} MB a minute")
        return found


def growths(samples: Iterable[Sample]) -> list[Growth]:
    """Of every process that was there for long enough."""
    of_process: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        of_process[sample.role, sample.pid].append(sample)
    found = []
    for (role, pid), own in of_process.items():
        warm = own[int(len(own) * WARM_UP_SHARE) :]
        seconds = [sample.seconds for sample in warm]
        if seconds[-1] - seconds[0] < SHORTEST_LIFE_S:
            continue
        first, second = warm[: len(warm) // 2], warm[len(warm) // 2 :]
        more = {
            name: _more([getattr(each, name) for each in first], [getattr(each, name) for each in second])
            for name in COUNTS
        }
        minutes = (seconds[-1] - seconds[0]) / 60
        private, shared = (
            median_slope(seconds, [getattr(sample, name) for sample in warm]) * 60 / 1e6
            for name in ("private", "shared")
        )
        found.append(Growth(role, pid, minutes, private, shared, more))
    return sorted(found, key=lambda growth: growth.role)


def table(found: Iterable[Growth]) -> list[str]:
    """Growth in lines."""
    lines = [
        f"after the first third (limits: {GROWTH_MB_PER_MINUTE:g} MB of private memory a minute, no counts):",
        f"{'process':<28}{'minutes':>8}{'private a minute':>19}{'shared':>12}  more",
    ]
    for growth in found:
        more = ", ".join(f"{name} {count:+}" for name, count in growth.more.items())
        sizes = f"{growth.private:>+16.3f} MB{growth.shared:>+9.3f} MB"
        lines.append(f"{growth.role:<28}{growth.minutes:>8.0f}{sizes}  {more}")
    return lines


def median_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Theil and Sen's: the median of the slopes between all two points."""
    x, y = np.asarray(xs), np.asarray(ys)
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _more(first: Sequence[int], second: Sequence[int]) -> int:
    """By how many the lower quartile of one time exceeds the median of the time before it.

    What comes and goes with requests is no leak, nor is what came back after the death of a process.
    """
    return int(np.percentile(second, 25) - np.median(first))
