"""Draws what a soak of a server has sampled: memory, descriptors and threads of each process over time.

    python tests/soak/soak_plots.py SAMPLES.csv FOLDER

It prints how much each has grown, too.

A replica's processes have the colour of their stage, those of replica 1 dashes. A line is broken where its
process was killed and another one has taken its place.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from soak_samples import WARM_UP_SHARE, Sample, growths, read_samples, table

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


# Of each role, the lives of its processes: seconds and values.
Lives = dict[str, list[list[tuple[float, float]]]]


def lives_of(samples: list[Sample], value: Callable[[Sample], float]) -> Lives:
    of_role: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        of_role[sample.role][sample.pid].append((sample.seconds, value(sample)))
    return {role: list(lives.values()) for role, lives in of_role.items()}


def since_warm_up(lives: Lives) -> Lives:
    """Of each life what comes after its first third, and by how much more it is than then."""
    found: Lives = {}
    for role, each in lives.items():
        warm = [life[int(len(life) * WARM_UP_SHARE) :] for life in each]
        found[role] = [[(seconds, value - life[0][1]) for seconds, value in life] for life in warm]
    return found


class SoakPicture:
    """Values over time, on an axis of logarithms if ``is_log``."""

    def __init__(self, title: str, unit: str, lives: Lives, *, is_log: bool = False) -> None:
        self._title, self._unit, self._lives, self._is_log = title, unit, lives, is_log
        points = [point for each in lives.values() for life in each for point in life]
        self._last = max(seconds for seconds, _ in points)
        low, high = (choose(value for _, value in points) for choose in (min, max))
        self._low = 10 ** math.floor(math.log10(max(low, 1.0))) if is_log else min(low * 1.05, 0.0)
        self._high = max(high * 1.05, self._low + 1.0)

    def across(self, seconds: float) -> float:
        return LEFT + seconds / self._last * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        if self._is_log:
            return down(math.log(max(value, self._low) / self._low) / math.log(self._high / self._low))
        return down((value - self._low) / (self._high - self._low))

    def draw(self) -> str:
        kinds = list(dict.fromkeys(map(kind_of, self._lives)))
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
        for minute in _steps(0.0, self._last / 60):
            x = self.across(60 * minute)
            yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{minute:g}</text>'
        x = self.across(self._last * WARM_UP_SHARE)
        yield f'<line class="warm" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x + 5:.1f}" y="{TOP - 4}">limits hold from here on</text>'

    def _ticks(self) -> list[float]:
        if not self._is_log:
            return _steps(self._low, self._high)
        powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in values if self._low <= value <= self._high]

    def _lines(self) -> Iterator[str]:
        ends: list[tuple[float, str, str]] = []
        for role, lives in self._lives.items():
            second = "" if role.endswith("0") or not role[-1].isdigit() else " second"
            stride = max(1, sum(map(len, lives)) // POINTS)
            for life in lives:
                places = [(self.across(seconds), self.down(value)) for seconds, value in life[::stride]]
                steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
                yield f'<path class="{kind_of(role)}{second}" d="M{steps}"/>'
            _, last = max(life[-1] for life in lives)
            ends.append((self.down(last), kind_of(role), role))
        ends.sort()
        for y, (_, kind, role) in zip(_apart([y + 4 for y, _, _ in ends]), ends, strict=True):
            yield f'<text class="name {kind}" x="{WIDTH - RIGHT + 8}" y="{y:.1f}">{role}</text>'


def _apart(places: list[float]) -> list[float]:
    """Names stand at their lines' ends, pushed apart where two would overlap, but not out of the picture."""
    found: list[float] = []
    for y in places:
        found.append(max(y, found[-1] + LABEL_GAP) if found else y)
    lowest = float(HEIGHT - LABEL_GAP)
    for index in reversed(range(len(found))):
        found[index] = min(found[index], lowest)
        lowest = found[index] - LABEL_GAP
    return found


def _steps(low: float, high: float) -> list[float]:
    """Some six steps of 1, 2 or 5 times a power of ten, zero among them."""
    least = max((high - low) / 6, 0.1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def draw(samples: list[Sample], folder: Path) -> list[Path]:
    """The pictures' files."""
    memory = lives_of(samples, lambda each: each.private / 1e6)
    title = "Private memory, beyond that at the end of the first third of a process's life"
    pictures = {
        "soak-memory.svg": SoakPicture("Private memory", "MB", memory, is_log=True),
        "soak-growth.svg": SoakPicture(title, "MB", since_warm_up(memory)),
        "soak-descriptors.svg": SoakPicture(
            "Open descriptors", "", lives_of(samples, lambda each: each.descriptors)
        ),
        "soak-threads.svg": SoakPicture("Threads", "", lives_of(samples, lambda each: each.threads)),
    }
    for name, picture in pictures.items():
        (folder / name).write_text(picture.draw())
    return [folder / name for name in pictures]


if __name__ == "__main__":
    drawn = read_samples(Path(sys.argv[1]))
    print(*table(growths(drawn)), sep="\n")
    for file in draw(drawn, Path(sys.argv[2])):
        print(f"wrote {file}")
