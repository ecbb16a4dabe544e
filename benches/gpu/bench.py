"""What the cases of ``run.py`` share: a device, medians, and rows of a table."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Row:
    """One figure. ``beside`` is what to read it against, of the same run."""

    case: str
    what: str
    value: float
    unit: str
    beside: str = ""


@dataclass
class Check:
    case: str
    what: str
    passed: bool
    detail: str = ""


class Skip(Exception):
    """The case cannot run here; the text says what is missing."""


@dataclass
class Bench:
    """
    Attributes:
        device: ``"cpu"`` or ``"cuda:0"``.
        deadline: ``time.monotonic()`` after which no case begins.
        out: The folder of results.
    """

    device: str
    deadline: float
    out: Path
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def row(self, case: str, what: str, value: float, unit: str, beside: str = "") -> None:
        self.rows.append(Row(case, what, value, unit, beside))

    def check(self, case: str, what: str, passed: bool, detail: str = "") -> None:
        self.checks.append(Check(case, what, passed, detail))

    def skip(self, what: str, why: str) -> None:
        """Says at once, and in the table, that something is not run."""
        self.skipped[what] = why
        print(f"SKIPPED {what}: {why}", file=sys.stderr, flush=True)

    def milliseconds(self, work: Callable[[], Any], rounds: int = 30) -> float:
        """Median of ``work`` until the GPU has done it; a CPU gets a tenth of the rounds."""
        rounds = rounds if self.on_gpu else max(3, rounds // 10)
        for _ in range(3):
            work()
        taken = []
        for _ in range(rounds):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken) * 1000

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def result(self) -> dict[str, Any]:
        return {
            "rows": [asdict(row) for row in self.rows],
            "checks": [asdict(check) for check in self.checks],
            "skipped": self.skipped,
        }


def markdown(machine: dict[str, str], bench: Bench) -> str:
    lines = [*(f"{name}: {value}  " for name, value in machine.items()), ""]
    lines += ["| case | figure | value | beside |", "| --- | --- | --- | --- |"]
    lines += [f"| {r.case} | {r.what} | {r.value:.4g} {r.unit} | {r.beside} |" for r in bench.rows]
    lines += ["", "| case | check | |", "| --- | --- | --- |"]
    lines += [
        f"| {c.case} | {c.what} | {'passed' if c.passed else '**failed** ' + c.detail} |"
        for c in bench.checks
    ]
    lines += ["", *(f"Skipped: {name}: {why}" for name, why in bench.skipped.items())]
    return "\n".join(lines) + "\n"
