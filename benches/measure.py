"""What every benchmark here shares: medians of interleaved runs, memcpy as the limit, tables and JSON."""

from __future__ import annotations

import json
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"


def timed(work: Callable[[], Any]) -> float:
    """Seconds one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(cases: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 2) -> dict[str, float]:
    """Median seconds of each case. Rounds go A B A B ..., so a drift of the machine meets all alike."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warmup + rounds):
        for name, work in cases.items():
            seconds = timed(work)
            if number >= warmup:
                samples[name].append(seconds)
    return {name: statistics.median(values) for name, values in samples.items()}


def percentile(samples: list[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def memcpy_warm(nbytes: int) -> Callable[[], None]:
    """A copy between two buffers that are mapped and faulted in: the floor of any transport with one copy."""
    source, destination = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    return lambda: np.copyto(destination, source)


def memcpy_fresh(nbytes: int) -> Callable[[], None]:
    """A copy into memory mapped for it: a page fault for every page on the way."""
    source = np.ones(nbytes, np.uint8)

    def copy() -> None:
        with mmap.mmap(-1, nbytes) as fresh:
            view = np.frombuffer(fresh, np.uint8)
            np.copyto(view, source)
            del view

    return copy


def show_time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_results(name: str, results: Any) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    return path
