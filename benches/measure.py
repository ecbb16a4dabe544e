"""What the benchmarks share: interleaved samples, memcpy as the limit, results as JSON and as a table.

Needs nothing but numpy, because the peer's environment imports it too.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

KIB, MIB = 1 << 10, 1 << 20
RESULTS = Path(__file__).resolve().parent / "results"

# Some samples of one or several quantities: {"write": [seconds, ...], "read": [...]}.
Samples = dict[str, list[float]]
Block = Callable[[], Awaitable[Samples]]


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def timed(work: Callable[[], Any]) -> float:
    """Seconds one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def block(name: str, work: Callable[[], Any], count: int = 1) -> Block:
    """The seconds of ``count`` calls."""

    async def run() -> Samples:
        return {name: [timed(work) for _ in range(count)]}

    return run


async def interleaved(blocks: Sequence[Block], rounds: int) -> dict[str, float]:
    """Medians of all samples. Every round has each block, so a drift of the machine meets all; one warms up.

    Rounds differ in order: what a block leaves behind in caches is nobody's in particular.
    """
    samples: Samples = {}
    draw = random.Random(0)
    for number in range(1 + rounds):
        for run in draw.sample(blocks, len(blocks)):
            for name, values in (await run()).items():
                if number:
                    samples.setdefault(name, []).extend(values)
    return {name: statistics.median(values) for name, values in samples.items()}


def memcpy_fresh(nbytes: int) -> Callable[[], None]:
    """A copy into memory mapped for it: a page fault for every page on the way."""
    source = np.ones(nbytes, np.uint8)

    def copy() -> None:
        with mmap.mmap(-1, nbytes) as fresh:
            view = np.frombuffer(fresh, np.uint8)
            np.copyto(view, source)
            del view

    return copy


@dataclass
class Result:
    """One row: a quantity in seconds, or in events per second.

    ``must`` and ``aim`` are multiples of ``limit`` where ``unit`` is "x", and in its unit otherwise. A row
    without them is there to be read beside the others.
    """

    case: str
    ours: float
    unit: Literal["x", "s", "/s"]
    must: float | None = None
    aim: float | None = None
    limit: float | None = None
    limit_name: str = "memcpy"
    fresh: float | None = None
    peer: float | None = None

    def reaches(self, goal: float) -> bool:
        if self.unit == "/s":
            return self.ours >= goal
        return (self.ours / self.limit if self.unit == "x" and self.limit else self.ours) <= goal

    @property
    def reached(self) -> str:
        if self.must is None or self.aim is None:
            return "-"
        return (
            "yes, and the aim" if self.reaches(self.aim) else "yes" if self.reaches(self.must) else "**no**"
        )

    def row(self) -> list[str]:
        show = show_rate if self.unit == "/s" else show_time
        goal = (lambda value: f"{value:g} x") if self.unit == "x" else show
        limit = "-" if self.limit is None else show(self.limit)
        if self.limit is not None and self.limit_name != "memcpy":
            limit = f"{self.limit_name} {limit}"
        return [
            self.case,
            limit,
            "-" if self.fresh is None else show(self.fresh),
            show(self.ours),
            "-" if self.limit is None else f"{self.ours / self.limit:.2f} x",
            "-" if self.must is None else goal(self.must),
            "-" if self.aim is None else goal(self.aim),
            self.reached,
            "-" if self.peer is None else show(self.peer),
            "-" if self.peer is None else f"{max(self.peer / self.ours, self.ours / self.peer):.1f} x",
        ]


HEADINGS = ["case", "memcpy warm, or limit", "memcpy fresh", "ours", "of the limit", "must reach", "aim for"]
HEADINGS += ["reached", "peer", "ours is better by"]


def show_time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError


def show_rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s"


def table(rows: list[list[str]]) -> str:
    """A Markdown table under ``HEADINGS``."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions() -> dict[str, Any]:
    """When and where: a reader must know what else ran on the machine."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "load": [round(load, 1) for load in os.getloadavg()],
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def write_results(name: str, began: dict[str, Any], results: list[Result], **more: Any) -> Path:
    """``began`` is what ``conditions`` were at the start."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    cases = [{**asdict(result), "reached": result.reached} for result in results]
    content = {"began": began, "ended": conditions(), "cases": cases, **more}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
