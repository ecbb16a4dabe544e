"""Draws docs/router-policies.svg from what `router-sim growth FILE` wrote.

python benches/router_sim/plot.py FILE
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent.parent / "docs/router-policies.svg"

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 800, 220, 84, 190, 56, 84
LABEL_GAP = 15

STYLE = """
svg { --ink: #1f2328; --faint: #d8dee4; --paper: #ffffff;
  --a: #0550ae; --b: #bc4c00; --c: #57606a; --d: #8250df }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #30363d; --paper: #0d1117;
  --a: #58a6ff; --b: #f0883e; --c: #9ea7b3; --d: #bc8cff } }
text { font: 13px system-ui, sans-serif; fill: var(--ink) }
.title { font-size: 16px; font-weight: 600 }
.paper { fill: var(--paper) }
.grid { stroke: var(--faint) }
path { fill: none; stroke: var(--line); stroke-width: 2.2 }
circle { fill: var(--line) }
text.name { fill: var(--line); font-weight: 600 }
.a { --line: var(--a) } .b { --line: var(--b) } .c { --line: var(--c) } .d { --line: var(--d) }
"""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """From one value to another, evenly or by powers of ten, with marks at `ticks`."""

    low: float
    high: float
    ticks: dict[float, str]
    is_log: bool = True

    def share(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    across: Axis
    down: Axis
    lines: dict[str, Points]

    def draw(self, top: float) -> Iterator[str]:
        def x(value: float) -> float:
            return LEFT + self.across.share(value) * (WIDTH - LEFT - RIGHT)

        def y(value: float) -> float:
            return top + PANEL * (1 - self.down.share(value))

        yield f'<text class="title" x="{LEFT}" y="{top - 16}">{self.title}</text>'
        for value, label in self.across.ticks.items():
            at = x(value)
            yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + PANEL}"/>'
            yield f'<text x="{at:.1f}" y="{top + PANEL + 18}" text-anchor="middle">{label}</text>'
        for value, label in self.down.ticks.items():
            at = y(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text x="{middle:.0f}" y="{top + PANEL + 38}" text-anchor="middle">{self.unit}</text>'
        ends = []
        for name, points, colour in zip(self.lines, self.lines.values(), "abcd", strict=False):
            places = [(x(across), y(down)) for across, down in points]
            steps = " L".join(f"{px:.1f} {py:.1f}" for px, py in places)
            yield f'<path class="{colour}" d="M{steps}"/>'
            yield from (f'<circle class="{colour}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in places)
            ends.append((places[-1][1], name, colour))
        # Names stand at the lines' ends, pushed apart from the top where two would overlap.
        lowest = 0.0
        for at, name, colour in sorted(ends):
            lowest = max(at + 4, lowest + LABEL_GAP)
            yield f'<text class="name {colour}" x="{WIDTH - RIGHT + 10}" y="{lowest:.1f}">{name}</text>'


def read_panels(found: dict) -> list[Panel]:
    trees = {
        f"{tree['workers']} workers": [(point["nodes"], point["p50_ns"] / 1e3) for point in tree["points"]]
        for tree in found["trees"]
    }

    def over(key: str, value: str, scale: float = 1.0) -> dict[str, Points]:
        return {
            name: [(point["at"], point[value] * scale) for point in points]
            for name, points in found[key].items()
        }

    nodes = Axis(1e3, 1e6, {1e3: "1,000", 1e4: "10,000", 1e5: "100,000", 1e6: "1,000,000"})
    microseconds = Axis(0.5, 50, {1: "1 µs", 10: "10 µs", 20: "20 µs"})
    sizes = Axis(4, 128, {4: "4", 8: "8", 16: "16", 32: "32", 64: "64", 128: "128"})
    shares = Axis(
        0.5, 1.0, {0.5: "50 %", 0.6: "60 %", 0.7: "70 %", 0.8: "80 %", 0.9: "90 %", 1: "100 %"}, False
    )
    rates = Axis(25, 400, {25: "25", 50: "50", 100: "100", 200: "200", 400: "400"})
    millis = Axis(3, 30_000, {10: "10 ms", 100: "100 ms", 1000: "1 s", 10_000: "10 s"})
    cost, hits, wait = trees, over("workers", "hit_rate"), over("traffic", "first_token", 1e3)
    return [
        Panel(
            "A decision of cache_aware, 4 KB prompts, median", "nodes of the tree", nodes, microseconds, cost
        ),
        Panel("Hit rate, traffic in proportion to workers", "workers", sizes, shares, hits),
        Panel("Time to the first token, 8 workers, mean", "requests a second", rates, millis, wait),
    ]


def draw(panels: list[Panel]) -> str:
    height = TOP + len(panels) * (PANEL + GAP)
    drawn = [line for at, panel in enumerate(panels) for line in panel.draw(TOP + at * (PANEL + GAP))]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            "<title>Decision cost, hit rate and latency of the router's policies, simulated</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            *drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(draw(read_panels(json.loads(Path(sys.argv[1]).read_text()))))
    print(f"wrote {TARGET}")
