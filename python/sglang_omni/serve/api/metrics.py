"""Counters and histograms in Prometheus' text format."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sglang_omni.client import UsageInfo
from sglang_omni.pipeline.stage.stats import DESCRIPTIONS

if TYPE_CHECKING:
    from sglang_omni.serve.api.admission import Admission

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

Labels = tuple[tuple[str, str], ...]
# Metrics by name: help text, and values by label.
Families = dict[str, tuple[str, dict[Labels, float]]]


class Counter:
    def __init__(self) -> None:
        self.values: dict[Labels, float] = defaultdict(float)

    def add(self, amount: float = 1, **labels: str) -> None:
        self.values[tuple(labels.items())] += amount

    def lines(self, name: str) -> Iterable[str]:
        for labels, value in self.values.items():
            yield _sample(name, labels, value)


class Histogram:
    """Observed seconds, counted into buckets."""

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = defaultdict(float)

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sums[key] += value

    def lines(self, name: str) -> Iterable[str]:
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                total += count
                yield _sample(f"{name}_bucket", (*labels, ("le", _number(bound))), total)
            yield _sample(f"{name}_sum", labels, self.sums[labels])
            yield _sample(f"{name}_count", labels, total)


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.requests = Counter()
        self.seconds = Histogram()
        self.first_output_seconds = Histogram()
        self.tokens = Counter()
        for kind in ("prompt", "completion", "cached"):
            self.tokens.add(0, kind=kind)

    def request_done(self, path: str, status: int, seconds: float) -> None:
        self.requests.add(path=path, status=str(status))
        self.seconds.observe(seconds, path=path)

    def first_output(self, seconds: float) -> None:
        self.first_output_seconds.observe(seconds)

    def finished(self, usage: UsageInfo | None) -> None:
        """What a request's result tells of its tokens."""
        if usage is not None:
            self.tokens.add(usage.prompt_tokens or 0, kind="prompt")
            self.tokens.add(usage.completion_tokens or 0, kind="completion")
            self.tokens.add(usage.cached_tokens or 0, kind="cached")

    def render(self, families: Families) -> str:
        """
        Args:
            families: What is read at the time of asking.
        """
        out: list[str] = []

        def family(name: str, kind: str, help_text: str, lines: Iterable[str]) -> None:
            out.extend((f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *lines))

        prefix = "sglang_omni_"
        for name, kind, help_text, source in (
            ("requests_total", "counter", "HTTP requests answered.", self.requests),
            ("tokens_total", "counter", "Tokens read, generated, and found in the cache.", self.tokens),
            ("request_seconds", "histogram", "Time until a request was answered.", self.seconds),
            (
                "first_output_seconds",
                "histogram",
                "Time until a streamed request's first output.",
                self.first_output_seconds,
            ),
        ):
            family(prefix + name, kind, help_text, source.lines(prefix + name))
        in_flight: Families = {
            "requests_in_flight": ("HTTP requests being answered.", {(): float(self.in_flight)})
        }
        for name, (help_text, values) in (in_flight | families).items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines = (_sample(prefix + name, labels, value) for labels, value in values.items())
            family(prefix + name, kind, help_text, lines)
        return "\n".join(out) + "\n"


def admission_families(admission: Admission) -> Families:
    """How many requests run, wait and were refused."""
    return {
        "requests_running": ("Requests that have a place.", {(): float(admission.running)}),
        "requests_waiting": ("Requests that wait for a place.", {(): float(admission.waiting)}),
        "requests_refused_total": (
            "Requests refused with 429, by reason.",
            {(("reason", reason),): float(count) for reason, count in admission.refused.items()},
        ),
    }


def stage_families(stats: Mapping[str, Mapping[str, float]]) -> Families:
    """``stage_...`` metrics from what each stage reports."""
    families: Families = {}
    for stage, numbers in stats.items():
        labels: Labels = (("stage", stage),)
        for name, value in numbers.items():
            text = DESCRIPTIONS.get(name, "Reported by the stage.")
            families.setdefault(f"stage_{name}", (text, {}))[1][labels] = value
        if "generation_tokens_total" in numbers and "max_batch_size" in numbers:
            name, text = "decode_batch_size_max", DESCRIPTIONS["max_batch_size"]
            families.setdefault(name, (text, {}))[1][labels] = numbers["max_batch_size"]
    return families


def _sample(name: str, labels: Labels, value: float) -> str:
    return f"{name}{_labelled(labels)} {_number(value)}"


def _number(value: float) -> str:
    """All of its digits, since rates are differences of sums that have grown for months."""
    return "+Inf" if value == math.inf else repr(float(value)).removesuffix(".0")


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: Any) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
