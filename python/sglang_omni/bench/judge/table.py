"""How a server did in each scenario: a row each, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglang_omni.bench.judge.judged import Judged
from sglang_omni.bench.outcome import Outcome
from sglang_omni.bench.summary import percentile

_MISSING = "-"
_HEADS = (
    ("scenario", ""),
    ("turns", ""),
    ("failed", ""),
    ("first sound", "p50/p90 ms"),
    ("to silence", "p50/p90 ms"),
    ("talk-over", "s a turn"),
    ("words lost", ""),
    ("gaps", "s a turn"),
    ("stops", ""),
)


@dataclass(frozen=True)
class ScenarioFigures:
    """Of all turns of one scenario; None is what no turn has.

    Attributes:
        first_sound_ms: The median, and what 90 % of the turns do not exceed.
        silence_ms: The same, of interrupted answers.
        talk_over_s: The mean.
        words: Of the user's speech, where the server wrote any of it down.
        gaps_s: The mean.
        undisturbed: Answers during which something happened that should not stop them.
        stopped: Those of them that it stopped.
    """

    turns: int
    failed: int
    first_sound_ms: tuple[float, float] | None
    silence_ms: tuple[float, float] | None
    talk_over_s: float | None
    words: int | None
    words_lost: int | None
    gaps_s: float | None
    undisturbed: int | None
    stopped: int | None


def scenario_figures(name: str, outcomes: Sequence[Outcome]) -> ScenarioFigures:
    """The figures of the scenario with this name."""
    turns = [(each, of) for each in outcomes if (of := each.judged) is not None and of.scenario == name]
    judged = [of for _, of in turns]
    words = _values(judged, "words")
    stopped = _values(judged, "stopped")
    return ScenarioFigures(
        turns=len(turns),
        failed=sum(outcome.error is not None for outcome, _ in turns),
        first_sound_ms=_spread(_values(judged, "first_sound")),
        silence_ms=_spread(_values(judged, "silence")),
        talk_over_s=_mean(_values(judged, "talk_over")),
        words=round(sum(words)) if words else None,
        words_lost=round(sum(_values(judged, "words_lost"))) if words else None,
        gaps_s=_mean(_values(judged, "gaps")),
        undisturbed=len(stopped) or None,
        stopped=round(sum(stopped)) if stopped else None,
    )


def scenario_table(names: Sequence[str], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The lines to print; what the server does not support is a dash."""
    heads = map(list, zip(*_HEADS, strict=True))
    rows = [*heads, *(_row(name, scenario_figures(name, outcomes)) for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()


def _row(name: str, of: ScenarioFigures) -> list[str]:
    share = "" if not of.words else f" {(of.words_lost or 0) / of.words:.0%}"
    return [
        name,
        str(of.turns) if of.turns else _MISSING,
        str(of.failed) if of.turns else _MISSING,
        _pair(of.first_sound_ms),
        _pair(of.silence_ms),
        _seconds(of.talk_over_s),
        _MISSING if of.words is None else f"{of.words_lost}/{of.words}{share}",
        _seconds(of.gaps_s),
        _MISSING if of.undisturbed is None else f"{of.stopped}/{of.undisturbed}",
    ]


def _values(judged: Sequence[Judged], name: str) -> list[float]:
    return [value for each in judged if (value := getattr(each, name)) is not None]


def _spread(seconds: Sequence[float]) -> tuple[float, float] | None:
    ordered = sorted(1e3 * value for value in seconds)
    return (percentile(ordered, 50), percentile(ordered, 90)) if ordered else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _pair(milliseconds: tuple[float, float] | None) -> str:
    return _MISSING if milliseconds is None else "/".join(f"{value:.0f}" for value in milliseconds)


def _seconds(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.2f}"
