"""Draws docs/replicas.svg from benches/results/replicas.json: what replicas bring, and how they come and go.

python benches/plot_replicas.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from measure import RESULTS

TARGET = Path(__file__).resolve().parent.parent / "docs/replicas.svg"

HEIGHT, TOP, BOTTOM = 340, 70, 54
# Where the two panels begin and end.
FIXED = (70, 300)
TIMED = (400, 790)
WIDTH = 830

STYLE = """
svg { --ink: #1f2328; --faint: #d8dee4; --paper: #ffffff;
  --ours: #0550ae; --limit: #57606a; --count: #bc4c00 }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #30363d; --paper: #0d1117;
  --ours: #58a6ff; --limit: #9ea7b3; --count: #f0883e } }
text { font: 13px system-ui, sans-serif; fill: var(--ink) }
.title { font-size: 15px; font-weight: 600 }
.paper { fill: var(--paper) }
.grid { stroke: var(--faint) }
path { fill: none; stroke-width: 2.2 }
.ours { stroke: var(--ours) } .limit { stroke: var(--limit); stroke-dasharray: 2 4 }
.count { stroke: var(--count); stroke-dasharray: 8 4 }
circle { fill: var(--ours) }
text.ours, text.limit, text.count { stroke: none; font-weight: 600 }
text.ours { fill: var(--ours) } text.limit { fill: var(--limit) } text.count { fill: var(--count) }
"""

Panel = tuple[int, int]
Points = list[tuple[float, float]]


def down(share: float) -> float:
    """Where a share of the axis's end is."""
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def across(panel: Panel, share: float) -> float:
    return panel[0] + share * (panel[1] - panel[0])


def line(kind: str, panel: Panel, points: Points) -> str:
    """Shares of the axes, joined."""
    steps = " L".join(f"{across(panel, x):.1f} {down(y):.1f}" for x, y in points)
    return f'<path class="{kind}" d="M{steps}"/>'


def grid(panel: Panel, top: float, step: float) -> Iterator[str]:
    for index in range(round(top / step) + 1):
        y = down(index * step / top)
        yield f'<line class="grid" x1="{panel[0]}" x2="{panel[1]}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{panel[0] - 8}" y="{y + 4:.1f}" text-anchor="end">{index * step:g}</text>'


def below(panel: Panel, share: float, text: str) -> str:
    x = across(panel, share)
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>'


def names(panel: Panel, title: str, unit: str) -> Iterator[str]:
    yield f'<text class="title" x="{panel[0] - 40}" y="26">{title}</text>'
    yield f'<text x="{panel[0] - 40}" y="48">requests/s</text>'
    yield f'<text x="{sum(panel) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{unit}</text>'


def fixed(rates: dict[str, float], sleep_s: float) -> Iterator[str]:
    most = max(map(int, rates))
    top = most / sleep_s

    def share(count: float) -> float:
        return (count - 0.5) / most

    yield from names(FIXED, "A stage and its replicas", "replicas")
    yield from grid(FIXED, top, 1 / sleep_s)
    yield line("limit", FIXED, [(share(n), n / sleep_s / top) for n in (1, most)])
    points = [(share(int(count)), rate / top) for count, rate in rates.items()]
    yield line("ours", FIXED, points)
    for (x, y), (count, rate) in zip(points, rates.items(), strict=True):
        yield f'<circle cx="{across(FIXED, x):.1f}" cy="{down(y):.1f}" r="4"/>'
        yield f'<text class="ours" x="{across(FIXED, x) + 10:.1f}" y="{down(y) + 16:.1f}">{rate:.0f}</text>'
        yield below(FIXED, x, count)
    x, y = across(FIXED, share(most)), down(1.0)
    yield f'<text class="limit" x="{x - 8:.1f}" y="{y - 8:.1f}" text-anchor="end">without any cost</text>'


def timed(points: list[tuple[float, float, int]], sleep_s: float) -> Iterator[str]:
    top = max(count for _, _, count in points) / sleep_s
    last = points[-1][0]
    yield from names(TIMED, "Twelve callers come and go, with autoscaling", "seconds")
    yield from grid(TIMED, top, 1 / sleep_s)
    steps: Points = []
    for seconds, _, count in points:
        if steps:
            steps.append((seconds / last, steps[-1][1]))
        steps.append((seconds / last, count / sleep_s / top))
    yield line("count", TIMED, steps)
    yield line("ours", TIMED, [(seconds / last, min(rate / top, 1.0)) for seconds, rate, _ in points])
    for second in range(int(last) + 1):
        yield below(TIMED, second / last, str(second))
    yield f'<text class="count" x="{TIMED[1]}" y="48" text-anchor="end">what the replicas could do</text>'


def main() -> None:
    found = json.loads((RESULTS / "replicas.json").read_text())
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Requests a second of a stage with one, two and three replicas, and with autoscaling</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        *fixed(found["rates"], found["sleep_s"]),
        *timed(found["autoscaled"], found["sleep_s"]),
        "</svg>\n",
    ]
    TARGET.write_text("\n".join(body))
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
