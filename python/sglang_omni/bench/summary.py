"""Figures of a run: throughput, latencies with their percentiles, failures by kind, and what goals were met.

Names are those of vLLM's ``bench serve`` if they mean the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sglang_omni.bench.outcome import Outcome

PERCENTILES = (50, 90, 99)


class Measure(NamedTuple):
    """
    Attributes:
        key: Its name in the JSON and in ``--goodput``.
        title: Its name in the table.
        scale: From seconds to the unit of the table and of ``--goodput``.
    """

    key: str
    title: str
    scale: float
    unit: str


MEASURES = (
    Measure("ttft", "first text (TTFT)", 1e3, "ms"),
    Measure("itl", "between texts (ITL)", 1e3, "ms"),
    Measure("tpot", "each token (TPOT)", 1e3, "ms"),
    Measure("first_sound", "first sound", 1e3, "ms"),
    Measure("underrun", "gaps in the sound", 1e3, "ms"),
    Measure("rtf", "real-time factor", 1.0, ""),
    Measure("e2el", "whole answer (E2EL)", 1e3, "ms"),
)
# What a single request has: between its texts are many.
GOALS = tuple(measure for measure in MEASURES if measure.key != "itl")


@dataclass(frozen=True)
class Spread:
    """Of one measure, in its unit."""

    mean: float
    percentiles: dict[int, float]
    most: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in order: the smallest that at least so many percent do not exceed."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """
    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return Spread(sum(ordered) / len(ordered), {p: percentile(ordered, p) for p in PERCENTILES}, ordered[-1])


@dataclass(frozen=True)
class Summary:
    """
    Attributes:
        duration: Seconds from the first request's clock to the end of the last answer.
        errors: How many failures of each kind there were.
        examples: A message of each kind.
        counted: True if a server told no usage, and pieces of text are counted as tokens.
        spreads: By measure; only those that the answers have.
        good: Answers that meet every goal; None without goals.
        sound_s: Seconds of sound that was made, or listened to.
        run_dry: Answers in which the listener had nothing to play for a while.
    """

    completed: int
    duration: float
    errors: dict[str, int]
    examples: dict[str, str]
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    counted: bool
    spreads: dict[Measure, Spread]
    good: int | None
    sound_s: float
    run_dry: int

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    def a_second(self, count: float) -> float:
        """How many of them there were in a second."""
        return count / self.duration if self.duration else 0.0


def value_of(outcome: Outcome, measure: Measure) -> float | None:
    """One request's, in the measure's unit."""
    seconds: float | None = getattr(outcome, measure.key)
    return None if seconds is None else seconds * measure.scale


def summarize(outcomes: Sequence[Outcome], goals: dict[str, float]) -> Summary:
    """
    Args:
        outcomes: Of all requests and turns.
        goals: The most that each measure may be for an answer to be good, in the measure's unit.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    spreads = {}
    for measure in MEASURES:
        if measure.key == "itl":
            values = [gap * measure.scale for outcome in good for gap in outcome.itls]
        else:
            values = [value for outcome in good if (value := value_of(outcome, measure)) is not None]
        if values:
            spreads[measure] = spread(values)
    started = min((outcome.began for outcome in outcomes), default=0.0)
    return Summary(
        completed=len(good),
        duration=max((outcome.ended for outcome in outcomes), default=0.0) - started,
        errors=dict(Counter(error.kind for error in errors).most_common()),
        examples={error.kind: error.message for error in reversed(errors)},
        prompt_tokens=_sum([outcome.prompt_tokens for outcome in good]),
        cached_tokens=_sum([outcome.cached_tokens for outcome in good]),
        output_tokens=sum(outcome.output_tokens for outcome in good),
        counted=any(outcome.counted for outcome in good),
        spreads=spreads,
        good=sum(_meets(outcome, goals) for outcome in good) if goals else None,
        sound_s=sum(outcome.playback.seconds if outcome.playback else outcome.heard_s for outcome in good),
        run_dry=sum(bool(outcome.underrun) for outcome in good),
    )


def as_json(summary: Summary, outcomes: Sequence[Outcome], about: dict[str, Any]) -> dict[str, Any]:
    """What ``--output-json`` writes: the run, its figures, and every request.

    Args:
        about: The run's settings, and what the client noticed of itself.
    """
    per_s = summary.a_second
    result: dict[str, Any] = {
        **about,
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "errors": summary.errors,
        "total_input_tokens": summary.prompt_tokens,
        "total_cached_tokens": summary.cached_tokens,
        "total_output_tokens": summary.output_tokens,
        "output_tokens_are_counted_pieces": summary.counted,
        "request_throughput": per_s(summary.completed),
        "output_throughput": per_s(summary.output_tokens),
        "total_token_throughput": per_s(summary.output_tokens + (summary.prompt_tokens or 0)),
        "sound_seconds": summary.sound_s,
        "sound_seconds_per_second": per_s(summary.sound_s),
        "answers_with_gaps": summary.run_dry,
    }
    if summary.good is not None:
        result["request_goodput"] = per_s(summary.good)
    for measure, of in summary.spreads.items():
        name = f"{measure.key}_{measure.unit}" if measure.unit else measure.key
        result |= {f"mean_{name}": of.mean, f"max_{name}": of.most}
        result |= {f"p{p}_{name}": value for p, value in of.percentiles.items()}
    started = min((outcome.began for outcome in outcomes), default=0.0)
    result["requests"] = [_request(outcome, started) for outcome in outcomes]
    return result


def _request(outcome: Outcome, started: float) -> dict[str, Any]:
    """Times in seconds."""
    told = {measure.key: getattr(outcome, measure.key) for measure in GOALS}
    return {
        "began": outcome.began - started,
        "late": outcome.late_s,
        "error": None if outcome.error is None else str(outcome.error),
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
        **{key: value for key, value in told.items() if value is not None},
        **({} if outcome.judged is None else {"judged": asdict(outcome.judged)}),
    }


def _meets(outcome: Outcome, goals: dict[str, float]) -> bool:
    """A goal for what the answer does not have is not met."""
    for measure in GOALS:
        value = value_of(outcome, measure)
        if measure.key in goals and (value is None or value > goals[measure.key]):
            return False
    return True


def _sum(counts: Sequence[int | None]) -> int | None:
    """None if the server has not told each."""
    told = [count for count in counts if count is not None]
    return sum(told) if told and len(told) == len(counts) else None
