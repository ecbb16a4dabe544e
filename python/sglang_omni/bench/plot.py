"""A run as a picture: when each request was sent and how long it took, and how the times are spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from sglang_omni.bench.outcome import Outcome
from sglang_omni.bench.summary import MEASURES, Measure, value_of

_WIDTH, _HEIGHT = 960, 360
_LEFT, _TOP, _PANEL, _TALL = 70, 46, 370, 250
# What is drawn, the first that the answers have.
_DRAWN = ("first_sound", "ttft", "e2el")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#ddd}.d{fill:#2563eb;fill-opacity:.55}.x{stroke:#dc2626;stroke-width:1.5}"
    ".l{fill:none;stroke:#2563eb;stroke-width:2}"
)


def write_plot(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Writes an SVG file.

    Args:
        path: Where to.
        title: A line about the run.

    Raises:
        OSError: It cannot be written.
    """
    path.write_text(plot(outcomes, title), encoding="utf-8")


def plot(outcomes: Sequence[Outcome], title: str) -> str:
    """The SVG."""
    measure = _drawn(outcomes)
    started = min((outcome.began for outcome in outcomes), default=0.0)
    good = [outcome for outcome in outcomes if outcome.error is None]
    values = [(o.began - started, v) for o in good if (v := value_of(o, measure)) is not None]
    bad = [outcome.began - started for outcome in outcomes if outcome.error is not None]
    last = _round_up(max([at for at, _ in values] + bad, default=0.0))
    most = _round_up(max((value for _, value in values), default=0.0))
    unit = f"{measure.title}, {measure.unit}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<style>{_STYLE}</style><rect width='100%' height='100%' fill='#fff'/>",
        f'<text class="t" x="{_LEFT}" y="24">{escape(title)}</text>',
    ]
    first = _Panel(_LEFT, last, most)
    parts += first.frame("seconds since the start", unit)
    parts += [f'<circle class="d" cx="{first.x(at):.1f}" cy="{first.y(v):.1f}" r="3"/>' for at, v in values]
    parts += [_cross(first.x(at), _TOP + 8) for at in bad]
    second = _Panel(_LEFT + _PANEL + 100, most, 100.0)
    parts += second.frame(unit, "% of the requests at most")
    ordered = sorted(value for _, value in values)
    steps = [
        f"{second.x(value):.1f},{second.y(100 * (number + 1) / len(ordered)):.1f}"
        for number, value in enumerate(ordered)
    ]
    parts.append(f'<polyline class="l" points="{" ".join(steps)}"/>')
    if bad:
        parts.append(
            f'<text x="{_LEFT + _PANEL}" y="24" text-anchor="end" fill="#dc2626">x: {len(bad)} failed</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


class _Panel:
    """Axes from 0."""

    def __init__(self, left: int, most_x: float, most_y: float) -> None:
        self.left, self.most_x, self.most_y = left, most_x, most_y

    def x(self, value: float) -> float:
        return self.left + _PANEL * value / self.most_x

    def y(self, value: float) -> float:
        return _TOP + _TALL * (1 - value / self.most_y)

    def frame(self, x_title: str, y_title: str) -> list[str]:
        parts = []
        for quarter in range(5):
            x, y = self.most_x * quarter / 4, self.most_y * quarter / 4
            parts += [
                f'<path class="g" d="M{self.left} {self.y(y):.1f}h{_PANEL}"/>',
                f'<text x="{self.left - 6}" y="{self.y(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>',
                f'<text x="{self.x(x):.1f}" y="{_TOP + _TALL + 18}" text-anchor="middle">{x:.4g}</text>',
            ]
        middle, low = self.left + _PANEL / 2, _TOP + _TALL + 40
        parts.append(f'<text x="{middle}" y="{low}" text-anchor="middle">{escape(x_title)}</text>')
        turn = f"translate({self.left - 52} {_TOP + _TALL / 2}) rotate(-90)"
        parts.append(f'<text transform="{turn}" text-anchor="middle">{escape(y_title)}</text>')
        return parts


def _round_up(value: float) -> float:
    """The end of an axis whose quarters are short numbers."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * unit >= value)


def _cross(x: float, y: float) -> str:
    return f'<path class="x" d="M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8"/>'


def _drawn(outcomes: Sequence[Outcome]) -> Measure:
    by_key = {measure.key: measure for measure in MEASURES}
    return next(
        by_key[key]
        for key in _DRAWN
        if key == _DRAWN[-1] or any(value_of(outcome, by_key[key]) is not None for outcome in outcomes)
    )
