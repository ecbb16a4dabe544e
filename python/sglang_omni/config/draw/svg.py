"""A pipeline's graph as an SVG picture, in light and dark, from left to right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from sglang_omni.config.draw.graph import GraphEdge, GraphStage, PipelineGraph
from sglang_omni.config.draw.layout import Spot, lay_out

# Pixels. A character of the labels' font is about this wide.
_CHAR, _SMALL_CHAR = 8.2, 6.4
_BOX_HEIGHT, _PASS, _GAP = 56, 14, 22
_MARGIN, _HEAD, _FOOT = 24, 40, 30
_OUTSIDE = 76
_LEAST_BETWEEN = 64
_STYLE = """svg { --ink: #1f2328; --dim: #57606a; --paper: #ffffff;
  --box: #f6f8fa; --line: #8c959f; --end: #0550ae }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --dim: #9ea7b3; --paper: #0d1117;
  --box: #161b22; --line: #6e7681; --end: #58a6ff } }
text { font: 14px system-ui, sans-serif; fill: var(--ink); text-anchor: middle }
.title { font-weight: 600; text-anchor: start }
.small { font-size: 12px; fill: var(--dim) }
.on-line { font-size: 11px; stroke: var(--paper); stroke-width: 4; paint-order: stroke }
.out { fill: var(--end); font-size: 12px } .foot { text-anchor: start }
.paper { fill: var(--paper) }
.stage { fill: var(--box); stroke: var(--line); stroke-width: 1.2 }
.end { stroke: var(--end); stroke-width: 2 }
path { fill: none; stroke: var(--line); stroke-width: 1.6 } .stream { stroke-dasharray: 5 4 }
.outer { stroke: var(--end) }
marker path { fill: var(--line); stroke: none } marker .tip { fill: var(--end) }"""
_TIP = (
    '<marker id="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="{0}" d="M0 0L8 4L0 8z"/></marker>'
)


def draw_svg(graph: PipelineGraph) -> str:
    """The graph as a picture that stands alone, with colours for light and dark."""
    return "\n".join(_Picture(graph).lines()) + "\n"


class _Picture:
    def __init__(self, graph: PipelineGraph) -> None:
        self._graph = graph
        self._stages = {stage.name: stage for stage in graph.stages}
        self._layout = lay_out(graph, size=lambda spot: _BOX_HEIGHT if spot.stage else _PASS, gap=_GAP)
        self._widths = [
            max(_box_width(self._stages[spot.stage]) for spot in layer if spot.stage)
            for layer in self._layout.layers
        ]
        labels = max((len(edge.label) for edge in graph.edges), default=0) * _SMALL_CHAR + 30
        between = max(_LEAST_BETWEEN, labels)
        self._lefts = [
            _MARGIN + _OUTSIDE + sum(self._widths[:n]) + n * between for n in range(len(self._widths))
        ]

    def lines(self) -> Iterator[str]:
        graph = self._graph
        width = round(self._lefts[-1] + self._widths[-1] + _OUTSIDE + _MARGIN)
        foot = list(_foot(graph))
        height = round(_HEAD + self._layout.width + _FOOT + 18 * len(foot))
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        yield f"<title>{escape(f'The pipeline {graph.name}: its stages and what goes between them')}</title>"
        yield f"<style>\n{_STYLE}\n</style>"
        yield "<defs>" + "".join(_TIP.format(name) for name in ("head", "tip")) + "</defs>"
        yield f'<rect class="paper" width="{width}" height="{height}"/>'
        yield f'<text class="title" x="{_MARGIN}" y="26">{escape(graph.name)}</text>'
        labels = []
        for edge, path in zip(graph.edges, self._layout.paths, strict=True):
            points = self._points(path)
            kind = "" if edge.payload else ' class="stream"'
            yield f'<path{kind} d="{_curve(points)}" marker-end="url(#head)"/>'
            labels.append(_edge_label(edge, points))
        for layer in self._layout.layers:
            for spot in layer:
                if spot.stage:
                    yield from self._stage(spot)
        yield from labels
        for number, line in enumerate(foot):
            y = height - _FOOT / 2 - 18 * (len(foot) - 1 - number)
            yield f'<text class="small foot" x="{_MARGIN}" y="{y:g}">{escape(line)}</text>'
        yield "</svg>"

    def _sides(self, spot: Spot) -> tuple[float, float, float]:
        """The spot's left side, right side and middle line."""
        left, width = self._lefts[spot.layer], self._widths[spot.layer]
        return left, left + width, _HEAD + self._layout.across[spot]

    def _points(self, path: Sequence[Spot]) -> list[tuple[float, float]]:
        """Where an edge begins, passes and ends."""
        points = []
        step = 1 if path[0].layer <= path[-1].layer else -1
        for number, spot in enumerate(path):
            left, right, y = self._sides(spot)
            near, far = (left, right) if step > 0 else (right, left)
            if number > 0:
                points.append((near, y))
            if number < len(path) - 1:
                points.append((far, y))
        return points

    def _stage(self, spot: Spot) -> Iterator[str]:
        stage = self._stages[spot.stage]
        left, right, y = self._sides(spot)
        middle, top = (left + right) / 2, y - _BOX_HEIGHT / 2
        kind = "stage end" if stage.entry or stage.terminal else "stage"
        yield (
            f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{right - left:g}" '
            f'height="{_BOX_HEIGHT}" rx="8"/>'
        )
        name = stage.name + (" ◇" if stage.chooses else "")
        yield f'<text x="{middle:g}" y="{y - 3:g}">{escape(name)}</text>'
        yield f'<text class="small" x="{middle:g}" y="{y + 16:g}">{escape(stage.place)}</text>'
        if stage.entry:
            labels = self._graph.inputs or ("request",)
            yield from _outside(left - 46, left, y, left - _OUTSIDE / 2 - 8, labels)
        if stage.terminal:
            labels = stage.outputs or ("answer",)
            yield from _outside(right, right + 46, y, right + _OUTSIDE / 2 + 8, labels)


def _outside(start: float, end: float, y: float, middle: float, labels: Sequence[str]) -> Iterator[str]:
    """An arrow from or to the outside, with what goes there above it."""
    yield f'<path class="outer" d="M{start:g} {y:g}H{end:g}" marker-end="url(#tip)"/>'
    for number, word in enumerate(reversed(labels)):
        yield f'<text class="out" x="{middle:g}" y="{y - 9 - 14 * number:g}">{escape(word)}</text>'


def _box_width(stage: GraphStage) -> float:
    return max((len(stage.name) + 2 * stage.chooses) * _CHAR, len(stage.place) * _SMALL_CHAR) + 28


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Alternately a curve between two layers and a straight line through one."""
    parts = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for number, ((x1, y1), (x2, y2)) in enumerate(itertools.pairwise(points)):
        bend = (x2 - x1) / 2
        curve = f"C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
        parts.append(curve if number % 2 == 0 else f"H{x2:g}")
    return "".join(parts)


def _edge_label(edge: GraphEdge, points: Sequence[tuple[float, float]]) -> str:
    """In the middle of the edge's last part, where edges have come apart that began together."""
    (x1, y1), (x2, y2) = points[-2:]
    at = f'x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 + 4:g}"'
    return f'<text class="small on-line" {at}>{escape(edge.label)}</text>'


def _foot(graph: PipelineGraph) -> Iterator[str]:
    if any(stage.chooses for stage in graph.stages):
        yield "◇ each result goes to some of the stages that the lines lead to"
    if any(not edge.payload for edge in graph.edges):
        yield "dashed: chunks, sent while the stage still works"
