"""Draws what a soak of a server has sampled: memory, descriptors and threads of each process over time.

    python tests/soak/soak_plots.py SAMPLES.csv FOLDER

A replica's processes have the colour of their stage, those of replica 1 dashes. A line is broken where its
process was killed and another one has taken its place.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from soak_samples import WARM_UP_SHARE, Sample, read_samples

WIDTH, HEIGHT = 830, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 62, 50
LABEL_GAP = 15
# More points than these are of no use at this width.
POINTS = 400

STYLE = """
svg { --ink: #1f2328; --faint: #d8dee4; --paper: #ffffff }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #30363d; --paper: #0d1117 } }
text { font: 13px system-ui, sans-serif; fill: var(--ink) }
.title { font-size: 16px; font-weight: 600 }
.paper { fill: var(--paper) }
.grid { stroke: var(--faint) }
.warm { stroke: var(--ink); stroke-dasharray: 2 4 }
path { fill: none; stroke-width: 1.8; stroke: var(--line) }
path.second { stroke-dasharray: 6 3 }
text.name { fill: var(--line); font-weight: 600 }
"""
# Of each kind of process, on light and on dark paper; further kinds begin again.
COLOURS = (
    ("#57606a", "#9ea7b3"),
    ("#bc4c00", "#f0883e"),
    ("#0550ae", "#58a6ff"),
    ("#8250df", "#bc8cff"),
    ("#1a7f37", "#3fb950"),
    ("#bf3989", "#f778ba"),
    ("#9a6700", "#d29922"),
)


def kind_of(role: str) -> str:
    """``thinker`` of ``thinker of replica 0``."""
    return role.partition(" of ")[0].partition(" ")[0]


def down(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def style(kinds: list[str]) -> str:
    light, dark = (
        "; ".join(f"--{kind}: {COLOURS[index % len(COLOURS)][paper]}" for index, kind in enumerate(kinds))
        for paper in (0, 1)
    )
    classes = " ".join(f".{kind} {{ --line: var(--{kind}) }}" for kind in kinds)
    dark_rule = f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    return f"<style>{STYLE}svg {{ {light} }}\n{dark_rule}\n{classes}\n</style>"


class Picture:
    """Values over time, on an axis of logarithms if they are of several sizes."""

    def __init__(
        self, title: str, unit: str, samples: list[Sample], value: Callable[[Sample], float]
    ) -> None:
        self._title, self._unit, self._value = title, unit, value
        self._samples = samples
        values = [value(sample) for sample in samples]
        self._last = max(sample.seconds for sample in samples)
        low, high = max(min(values), 1.0), max(values)
        self._is_log = high / low > 8
        self._low = 10 ** math.floor(math.log10(low)) if self._is_log else 0.0
        self._high = high * 1.05

    def across(self, seconds: float) -> float:
        return LEFT + seconds / self._last * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        if self._is_log:
            return down(math.log(max(value, self._low) / self._low) / math.log(self._high / self._low))
        return down((value - self._low) / (self._high - self._low))

    def draw(self) -> str:
        kinds = list(dict.fromkeys(kind_of(sample.role) for sample in self._samples))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
                f"<title>{self._title}, over {self._last / 60:.0f} minutes</title>",
                style(kinds),
                f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
                f'<text class="title" x="{LEFT}" y="26">{self._title}</text>',
                f'<text x="{LEFT - 50}" y="48">{self._unit}</text>',
                *self._grid(),
                *self._lines(),
                f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">'
                "minutes</text>",
                "</svg>\n",
            ]
        )

    def _grid(self) -> Iterator[str]:
        for value in self._ticks():
            y = self.down(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>'
        for minute in _steps(self._last / 60):
            x = self.across(60 * minute)
            yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{minute:g}</text>'
        x = self.across(self._last * WARM_UP_SHARE)
        yield f'<line class="warm" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x + 5:.1f}" y="{TOP - 4}">limits hold from here on</text>'

    def _ticks(self) -> list[float]:
        if not self._is_log:
            return _steps(self._high)
        powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in values if self._low <= value <= self._high]

    def _lines(self) -> Iterator[str]:
        of_role: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for sample in self._samples:
            of_role[sample.role][sample.pid].append(sample)
        ends: list[tuple[float, str, str]] = []
        for role, lives in of_role.items():
            second = "" if role.endswith("0") or not role[-1].isdigit() else " second"
            for life in lives.values():
                points = life[:: max(1, len(self._samples) // len(of_role) // POINTS)]
                places = [(self.across(each.seconds), self.down(self._value(each))) for each in points]
                steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
                yield f'<path class="{kind_of(role)}{second}" d="M{steps}"/>'
            last = max((life[-1] for life in lives.values()), key=lambda sample: sample.seconds)
            ends.append((self.down(self._value(last)), kind_of(role), role))
        # Names stand at the lines' ends, pushed apart from the top where two would overlap.
        lowest = float(TOP - LABEL_GAP)
        for y, kind, role in sorted(ends):
            lowest = max(y + 4, lowest + LABEL_GAP)
            yield f'<text class="name {kind}" x="{WIDTH - RIGHT + 8}" y="{lowest:.1f}">{role}</text>'


def _steps(end: float) -> list[float]:
    """From 0 to the end, some six steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(end / 6, 0.1)))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= end / 6)
    return [index * step for index in range(int(end / step) + 1)]


def draw(samples: list[Sample], folder: Path) -> list[Path]:
    """The pictures' files."""
    pictures = {
        "soak-memory.svg": Picture("Private memory", "MB", samples, lambda each: each.private / 1e6),
        "soak-descriptors.svg": Picture("Open descriptors", "", samples, lambda each: each.descriptors),
        "soak-threads.svg": Picture("Threads", "", samples, lambda each: each.threads),
    }
    for name, picture in pictures.items():
        (folder / name).write_text(picture.draw())
    return [folder / name for name in pictures]


if __name__ == "__main__":
    for file in draw(read_samples(Path(sys.argv[1])), Path(sys.argv[2])):
        print(f"wrote {file}")
