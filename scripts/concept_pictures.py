"""Draws the pictures of docs/concepts.md: what happens at the same time, as rows of bars over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LEFT, UNIT, ROW, TOP = 190, 62, 46, 24
STYLE = """\
    :root { --ink: #1b1f24; --soft: #57606a; --paper: #ffffff;
            --work: #cfe3ff; --first: #1f6feb; --wait: #eaeef2; --stop: #ffd8c2; }
    @media (prefers-color-scheme: dark) {
      :root { --ink: #e6edf3; --soft: #9da7b3; --paper: #0d1117;
              --work: #17375f; --first: #388bfd; --wait: #262c34; --stop: #5b2d14; }
    }
    .back { fill: var(--paper) }
    text { fill: var(--ink); text-anchor: middle }
    .name { text-anchor: end; font-weight: 600 }
    .note { fill: var(--soft); font-size: 13px }
    .work { fill: var(--work) } .first { fill: var(--first) }
    .wait { fill: var(--wait) } .stop { fill: var(--stop) }
    text.on-first { fill: #ffffff }
    line { stroke: var(--soft); stroke-dasharray: 4 4 }"""


@dataclass(frozen=True)
class Bar:
    """From ``start`` to ``end``; ``kind`` is ``work``, ``first``, ``wait`` or ``stop``."""

    start: float
    end: float
    text: str = ""
    kind: str = "work"


@dataclass(frozen=True)
class Picture:
    """``marks``: moments with a name, drawn over all rows."""

    title: str
    rows: dict[str, list[Bar]]
    marks: dict[str, float]


def _steps(start: int, end: int) -> list[Bar]:
    return [
        Bar(start, start + 1, "prompt", "first"),
        *(Bar(at, at + 1, "token") for at in range(start + 1, end)),
    ]


PICTURES = {
    "credits.svg": Picture(
        "One stage sends to two. A reader that stands still uses up its own edge's credit alone.",
        {
            "edge to decode": [Bar(at, at + 0.9, f"item {at + 1}") for at in range(9)],
            "edge to talker": [
                *(Bar(at, at + 0.9, f"item {at + 1}") for at in range(2)),
                Bar(2, 4.9, "items 3 and 4, unread", "stop"),
                Bar(5, 6.9, "item 5 waits", "wait"),
                *(Bar(at, at + 0.9, f"item {at - 2}") for at in range(7, 9)),
            ],
        },
        {"talker stands still": 2, "talker reads again": 7},
    ),
    "batching.svg": Picture(
        "Four requests in one scheduler. A step computes what all need next; new ones join it.",
        {
            "request A": _steps(0, 5),
            "request B": _steps(1, 9),
            "request C": [Bar(2.4, 3, "waits", "wait"), *_steps(3, 7)],
            "request D": [Bar(3.3, 5, "no room yet", "wait"), *_steps(5, 9)],
        },
        {"A ends, D joins": 5},
    ),
    "turns.svg": Picture(
        "A speaker asks, hears the answer while it is made, and interrupts it.",
        {
            "speaker": [Bar(0.3, 2.3, "question"), Bar(6, 7.8, "No, wait ...")],
            "detector": [Bar(2.3, 3, "pause", "wait")],
            "transcript": [Bar(3, 3.6, "", "first")],
            "text": [Bar(3.6, 6, "the answer")],
            "sound": [Bar(4.3, 6, "in sentences"), Bar(6, 8.6, "never sent", "stop")],
        },
        {"turn ends": 3, "first sound": 4.3, "interrupted": 6},
    ),
}


def draw(picture: Picture) -> str:
    """The picture as SVG."""
    longest = max(bar.end for bars in picture.rows.values() for bar in bars)
    width, height = LEFT + longest * UNIT + 40, TOP + len(picture.rows) * ROW + 46
    title = escape(picture.title)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'font-family="system-ui, sans-serif" font-size="14">',
        f"  <title>{title}</title>",
        f"  <style>\n{STYLE}\n  </style>",
        f'  <rect class="back" width="{width:g}" height="{height:g}" rx="10"/>',
    ]
    for index, (name, bars) in enumerate(picture.rows.items()):
        y = TOP + index * ROW
        lines.append(f'  <text class="name" x="{LEFT - 16}" y="{y + 22}">{escape(name)}</text>')
        for bar in bars:
            x, length = LEFT + bar.start * UNIT, (bar.end - bar.start) * UNIT - 3
            lines.append(
                f'  <rect class="{bar.kind}" x="{x:g}" y="{y}" width="{length:g}" height="34" rx="5"/>'
            )
            if bar.text:
                lines.append(
                    f'  <text class="on-{bar.kind}" x="{x + length / 2:g}" y="{y + 22}" font-size="12">'
                    f"{escape(bar.text)}</text>"
                )
    bottom = TOP + len(picture.rows) * ROW
    for name, at in picture.marks.items():
        x = LEFT + at * UNIT - 1.5
        lines.append(f'  <line x1="{x:g}" y1="{TOP - 10}" x2="{x:g}" y2="{bottom}"/>')
        lines.append(f'  <text class="note" x="{x:g}" y="{bottom + 20}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (IMAGES / name).write_text(draw(picture), encoding="utf-8")
