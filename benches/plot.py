"""Draws docs/data-plane.svg from benches/results/data_plane.json: one-way time against payload size.

python benches/plot.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from measure import RESULTS

TARGET = Path(__file__).resolve().parent.parent / "docs/data-plane.svg"

WIDTH, HEIGHT = 800, 470
LEFT, RIGHT, TOP, BOTTOM = 84, 190, 50, 60
# Decades of seconds and powers of 4 of bytes that the axes span.
SECONDS = (-7, 1)
BYTES = (10, 30)
LABEL_GAP = 15

# Class names of the style sheet below; each line differs in colour, dashes and marker.
LINES = ("peer", "ours", "fresh", "memcpy")
NAMES = {
    "peer": "sglang-omni 0.1.9",
    "ours": "this package",
    "fresh": "memcpy, fresh memory",
    "memcpy": "memcpy, warm memory",
}

STYLE = """
svg { --ink: #1f2328; --faint: #d8dee4; --paper: #ffffff;
  --ours: #0550ae; --peer: #bc4c00; --memcpy: #57606a; --fresh: #8250df }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #30363d; --paper: #0d1117;
  --ours: #58a6ff; --peer: #f0883e; --memcpy: #9ea7b3; --fresh: #bc8cff } }
text { font: 13px system-ui, sans-serif; fill: var(--ink) }
.title { font-size: 16px; font-weight: 600 }
.paper { fill: var(--paper) }
.grid { stroke: var(--faint) }
path { fill: none; stroke-width: 2.2 }
.memcpy { --line: var(--memcpy) } .fresh { --line: var(--fresh) }
.ours { --line: var(--ours) } .peer { --line: var(--peer) }
path.memcpy, path.fresh, path.ours, path.peer { stroke: var(--line) }
path.memcpy { stroke-dasharray: 2 4 } path.fresh { stroke-dasharray: 8 4 }
circle { fill: var(--line) } text.name { fill: var(--line); font-weight: 600 }
"""


def across(nbytes: float) -> float:
    low, high = BYTES
    return LEFT + (math.log2(nbytes) - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def down(seconds: float) -> float:
    low, high = SECONDS
    return HEIGHT - BOTTOM - (math.log10(seconds) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def grid() -> Iterator[str]:
    for power in range(BYTES[0], BYTES[1] + 1, 2):
        x = across(2**power)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        unit, scale = (("KiB", 10), ("MiB", 20), ("GiB", 30))[(power - 10) // 10]
        label = f"{2 ** (power - scale)} {unit}"
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>'
    for power in range(SECONDS[0], SECONDS[1] + 1):
        y = down(10**power)
        unit, scale = (("ns", -9), ("µs", -6), ("ms", -3), ("s", 0))[(power + 9) // 3]
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10 ** (power - scale)} {unit}</text>'


def draw(lines: dict[str, list[tuple[int, float]]]) -> str:
    """The picture. Each line is a list of (bytes, seconds)."""
    body = []
    ends: list[tuple[float, str]] = []
    for name, points in lines.items():
        places = [(across(nbytes), down(seconds)) for nbytes, seconds in points]
        steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        body.append(f'<path class="{name}" d="M{steps}"/>')
        body += [f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
        ends.append((places[-1][1], name))
    # Names stand at the lines' ends, pushed apart from the top where two would overlap.
    lowest = 0.0
    for y, name in sorted(ends):
        lowest = max(y + 4, lowest + LABEL_GAP)
        body.append(
            f'<text class="name {name}" x="{WIDTH - RIGHT + 10}" y="{lowest:.1f}">{NAMES[name]}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "<title>One-way time of a payload between two processes, against its size</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            f'<text class="title" x="{LEFT}" y="28">A tensor from one process to another, one way</text>',
            *grid(),
            *body,
            f'<text x="{middle:.0f}" y="{HEIGHT - 16}" text-anchor="middle">payload size</text>',
            f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
            'text-anchor="middle">time, median</text>',
            "</svg>\n",
        ]
    )


def read_lines() -> dict[str, list[tuple[int, float]]]:
    scaling = json.loads((RESULTS / "data_plane.json").read_text())["scaling"]
    # The peer is there where it was installed.
    keys = {"peer": "peer one way", "ours": "one way", "fresh": "fresh", "memcpy": "memcpy"}
    lines = {
        name: [(int(nbytes), found[keys[name]]) for nbytes, found in scaling.items() if keys[name] in found]
        for name in LINES
    }
    return {name: points for name, points in lines.items() if points}


if __name__ == "__main__":
    TARGET.write_text(draw(read_lines()))
    print(f"wrote {TARGET}")
