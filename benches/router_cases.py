"""What `router.py` measures, what has to be reached, and the table of what was."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from measure import show_time
from router_ways import OURS, PEER_NAMES, Window

Better = Literal["higher", "lower"]
Unit = Literal["share", "x", "cpu s", "s", "MB", "GB/s"]


@dataclass(frozen=True)
class Goal:
    must: float
    aim: float | None = None


@dataclass(frozen=True)
class Case:
    """One kind of load. Goals are in the unit of their quantity."""

    name: str
    title: str
    clients: int
    kind: str
    body_bytes: int
    share: Goal | Literal["pass"] | None = None  # "pass": what the bare pass-through has in the same run
    cpu: Goal | None = None
    p50: Goal | None = None


CASES = (
    Case("json-1", "1 client", 1, "json", 1200, "pass", Goal(0.06, 0.03), Goal(90e-6)),
    Case("json-32", "32 clients", 32, "json", 1200, Goal(0.25, 0.50), Goal(0.05, 0.03)),
    Case("json-256", "256 clients", 256, "json", 1200, Goal(0.25, 0.60), Goal(0.05, 0.03)),
    Case("sse-32", "32 streams", 32, "sse", 1200, Goal(0.40, 0.70), Goal(0.16, 0.10)),
    Case("sse-1", "1 stream", 1, "sse", 1200, p50=Goal(400e-6, 200e-6)),
    Case("64k-32", "32 clients, 64 KB", 32, "json", 64_000, cpu=Goal(0.15, 0.06)),
    Case("64k-256", "256 clients, 64 KB", 256, "json", 64_000),
    Case("20m-4", "4 clients, 20 MB", 4, "image", 20_000_000),
)
IDLE_MEMORY = Goal(40, 25)


@dataclass
class Row:
    """One quantity of one case, for every way that has it; others have failed there."""

    case: str
    unit: Unit
    better: Better
    values: dict[str, float]
    must: float | None = None
    aim: float | None = None

    def reaches(self, goal: float) -> bool:
        ours = self.values[OURS]
        return ours >= goal if self.better == "higher" else ours <= goal

    @property
    def reached(self) -> str:
        if self.must is None or OURS not in self.values:
            return "-"
        if not self.reaches(self.must):
            return "**no**"
        return "yes, and the aim" if self.aim is not None and self.reaches(self.aim) else "yes"

    @property
    def better_by(self) -> str:
        """Than the best peer; below 1 where it is better than ours."""
        theirs = [self.values[name] for name in PEER_NAMES if name in self.values]
        if not theirs or OURS not in self.values:
            return "-"
        ours = self.values[OURS]
        factor = ours / max(theirs) if self.better == "higher" else min(theirs) / ours if ours else 0
        return f"{factor:.1f} x"

    def cells(self, ways: list[str]) -> list[str]:
        def show(value: float | None) -> str:
            return "-" if value is None else show_value(value, self.unit)

        # What stands between the floor and the peers is ours and what it has to reach.
        cells = [self.case]
        for way in ways:
            cells.append(show(self.values.get(way)))
            if way == OURS:
                cells += [show(self.must), show(self.aim), self.reached]
        return [*cells, self.better_by]


def show_value(value: float, unit: Unit) -> str:
    match unit:
        case "share":
            return f"{value:.3f}".lstrip("0")
        case "x":
            return f"{value:.2f}"
        case "cpu s":
            return f"{value:.3f}"
        case "s":
            return show_time(value)
        case "MB":
            return f"{value:.0f} MB"
        case "GB/s":
            return f"{value:.2f} GB/s"


def table(rows: list[Row], ways: list[str]) -> str:
    """Markdown. ``ways`` are columns, in their order; those that were not measured are left out."""
    ways = [way for way in ways if any(way in row.values for row in rows)]
    headings = ["case"]
    for way in ways:
        headings += ["**ours**", "must", "aim", "reached"] if way == OURS else [way]
    headings.append("ours better by")
    lines = [headings, ["---"] * len(headings), *(row.cells(ways) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# The windows of each way, in the order of the passes; all ways have as many, or none.
Windows = dict[str, list[Window]]


def rows_of(case: Case, windows: Windows) -> list[Row]:
    """Medians over the passes. Shares are taken within a pass: what slows the machine meets both."""

    def medians(quantity: str) -> dict[str, float]:
        return {
            way: statistics.median(getattr(window, quantity) for window in seen)
            for way, seen in windows.items()
        }

    direct = windows["direct"]
    shares = {
        way: statistics.median(window.rate / base.rate for window, base in zip(seen, direct, strict=True))
        for way, seen in windows.items()
        if way != "direct"
    }
    proxies = {way: value for way, value in medians("cpu_per_1000").items() if way != "direct"}
    seconds = {
        quantity: {way: value / 1e6 for way, value in medians(quantity).items()}
        for quantity in ("p50_us", "p99_us")
    }

    share_goal = case.share
    if share_goal == "pass":
        share_goal = Goal(shares["pass"]) if "pass" in shares else None

    def row(what: str, unit: Unit, better: Better, values: dict[str, float], goal: Goal | None) -> Row:
        must, aim = (goal.must, goal.aim) if goal else (None, None)
        return Row(f"{case.title}: {what}", unit, better, values, must, aim)

    rows = [
        row("requests/s, share of direct", "share", "higher", shares, share_goal),
        row("CPU s per 1,000", "cpu s", "lower", proxies, case.cpu),
        row("p50", "s", "lower", seconds["p50_us"], case.p50),
        row("p99", "s", "lower", seconds["p99_us"], None),
    ]
    if case.kind == "image":
        rate = {way: value * case.body_bytes / 1e9 for way, value in medians("rate").items()}
        peak = {way: value for way, value in medians("peak_mib").items() if way != "direct"}
        rows.append(row("upload", "GB/s", "higher", rate, None))
        rows.append(row("peak memory", "MB", "lower", peak, None))
    return rows
