"""A pipeline's graph drawn with characters, for a terminal."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from sglang_omni.config.draw.graph import GraphEdge, GraphStage, PipelineGraph
from sglang_omni.config.draw.layout import Layout, Spot, keep_apart, lay_out

WIDTH = 80
# Columns between boxes: more of them if two lines would otherwise change places in the same two columns.
_GAPS = (2, 3, 4, 5)
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    _UP | _DOWN: "│",
    _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "┌",
    _DOWN | _LEFT: "┐",
    _UP | _RIGHT: "└",
    _UP | _LEFT: "┘",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
    _DOWN | _LEFT | _RIGHT: "┬",
    _UP | _LEFT | _RIGHT: "┴",
}
_DOTTED = {"│": "┊", "─": "┄"}


def draw_text(graph: PipelineGraph, width: int = WIDTH) -> str:
    """The graph from top to bottom, and below it what the lines carry.

    It is at most ``width`` columns wide, unless a single stage needs more: stages that do not fit beside one
    another go below.
    """
    ends = Counter(end for edge in graph.edges for end in (edge.source, edge.target))
    boxes = {stage.name: _box(stage, ends[stage.name]) for stage in graph.stages}

    def size(spot: Spot) -> float:
        return float(len(boxes[spot.stage][0])) if spot.stage else 1.0

    for most, gap in product(range(len(graph.stages), 0, -1), _GAPS):
        drawing = _Drawing(graph, lay_out(graph, size=size, gap=gap, most_in_layer=most), boxes)
        if drawing.is_clear and drawing.width <= width:
            break
    return "\n".join([*drawing.lines(), "", *_legend(graph, width)])


def _box(stage: GraphStage, edges: int) -> list[str]:
    """The lines of a stage's box, which is wide enough for all of its edges to meet it on one side."""
    inside = [stage.name, stage.place]
    inside += ["request ▸"] if stage.entry else []
    inside += [f"▸ {', '.join(stage.outputs) or 'answer'}"] if stage.terminal else []
    width = max(edges, *map(len, inside))
    return [f"┌─{'─' * width}─┐", *(f"│ {line:^{width}} │" for line in inside), f"└─{'─' * width}─┘"]


@dataclass
class _Segment:
    """A part of an edge, from one layer to the next: its columns at both ends, and its row between them."""

    edge: int
    upper: Spot
    lower: Spot
    start: int = 0
    end: int = 0
    track: int = 0


class _Drawing:
    def __init__(self, graph: PipelineGraph, layout: Layout, boxes: dict[str, list[str]]) -> None:
        self._edges = graph.edges
        self._layout = layout
        self._boxes = boxes
        self._channels = self._segments()
        tracks = [_give_tracks(channel) for channel in self._channels]
        self._tracks = [count for count, _ in tracks]
        self.is_clear = all(is_clear for _, is_clear in tracks)
        self.width = layout.width
        self._masks: dict[tuple[int, int], int] = {}
        self._solid: set[tuple[int, int]] = set()
        self._marks: dict[tuple[int, int], str] = {}

    def lines(self) -> list[str]:
        y = 0
        channels = iter(zip(self._channels, self._tracks, strict=True))
        for layer in self._layout.layers:
            height = max(len(self._boxes[spot.stage]) for spot in layer if spot.stage)
            channel, tracks = next(channels, ([], 0))
            for spot in layer:
                self._put_box(spot, y)
                if not spot.stage:
                    self._line(self._column(spot), y - 1, self._column(spot), y + height, spot.edge)
            below = y + height
            # The tip of an edge that goes back has a row of its own.
            tips = any(segment.upper.stage == self._target(segment) for segment in channel)
            for segment in channel:
                segment.track += tips
            above = below + max(tracks + tips, 1)
            for segment in channel:
                self._put_segment(segment, below, above)
            y = above + 1
        return self._rendered()

    def _target(self, segment: _Segment) -> str:
        return self._edges[segment.edge].target

    def _column(self, spot: Spot) -> int:
        return round(self._layout.across[spot] - 0.5)

    def _inside(self, spot: Spot) -> tuple[int, int]:
        """The first and the last column at which an edge may meet the spot."""
        if not spot.stage:
            return self._column(spot), self._column(spot)
        width = len(self._boxes[spot.stage][0])
        left = round(self._layout.across[spot] - width / 2)
        return left + 1, left + width - 2

    def _segments(self) -> list[list[_Segment]]:
        """The segments below each layer but the last, with their columns."""
        channels: list[list[_Segment]] = [[] for _ in self._layout.layers[1:]]
        for number, path in enumerate(self._layout.paths):
            for one, other in itertools.pairwise(path):
                upper, lower = sorted((one, other), key=lambda spot: spot.layer)
                if upper.layer < lower.layer:
                    channels[upper.layer].append(_Segment(number, upper, lower))
        for channel in channels:
            for segment in channel:
                low, high = self._inside(segment.upper)
                segment.start = min(max(self._column(segment.lower), low), high)
            for spot in {segment.upper: None for segment in channel}:
                mine = sorted((s for s in channel if s.upper == spot), key=lambda s: self._column(s.lower))
                for segment, column in zip(mine, self._spread(spot, [s.start for s in mine]), strict=True):
                    segment.start = column
            for spot in {segment.lower: None for segment in channel}:
                mine = sorted((s for s in channel if s.lower == spot), key=lambda s: s.start)
                for segment, column in zip(mine, self._spread(spot, [s.start for s in mine]), strict=True):
                    segment.end = column
        return channels

    def _spread(self, spot: Spot, wanted: list[int]) -> list[int]:
        """Columns on a side of the spot, near those wanted and apart from one another."""
        low, high = self._inside(spot)
        last = len(wanted) - 1
        apart = 2 if high - low >= 2 * last else 1
        near = keep_apart(wanted, [1.0] * len(wanted), [apart] * last, low=low, high=high - apart * last)
        # Rounded up at a half: Python's own rounding could let two fall together.
        return [math.floor(x + 0.5) for x in near]

    def _put_box(self, spot: Spot, y: int) -> None:
        if spot.stage:
            left = self._inside(spot)[0] - 1
            for row, text in enumerate(self._boxes[spot.stage]):
                self._marks.update({(left + x, y + row): char for x, char in enumerate(text)})

    def _put_segment(self, segment: _Segment, below: int, above: int) -> None:
        """``below``: the row below the upper layer; ``above``: the one above the lower layer."""
        # A stage may be less high than its layer.
        bottom = below - 1
        while segment.upper.stage and (segment.start, bottom) not in self._marks:
            bottom -= 1
        turn = below + segment.track
        self._line(segment.start, bottom, segment.start, turn, segment.edge)
        self._line(segment.start, turn, segment.end, turn, segment.edge)
        self._line(segment.end, turn, segment.end, above + 1, segment.edge)
        if segment.lower.stage == self._target(segment):
            self._marks[segment.end, above] = "▼"
        if segment.upper.stage == self._target(segment):
            self._marks[segment.start, bottom + 1] = "▲"

    def _line(self, x1: int, y1: int, x2: int, y2: int, edge: int) -> None:
        """A line from the middle of one cell to the middle of another in its row or column."""
        cells = []
        if x1 == x2:
            for y in range(y1, y2):
                cells += [((x1, y), _DOWN), ((x1, y + 1), _UP)]
        for x in range(min(x1, x2), max(x1, x2)):
            cells += [((x, y1), _RIGHT), ((x + 1, y1), _LEFT)]
        for cell, way in cells:
            self._masks[cell] = self._masks.get(cell, 0) | way
            if self._edges[edge].payload:
                self._solid.add(cell)

    def _rendered(self) -> list[str]:
        chars = {}
        for cell, mask in self._masks.items():
            line = _LINES.get(mask, "│" if mask & (_UP | _DOWN) else "─")
            chars[cell] = line if cell in self._solid else _DOTTED.get(line, line)
        chars |= self._marks
        rows = [""] * (1 + max(y for _, y in chars))
        for y in range(len(rows)):
            columns = [x for x, row in chars if row == y]
            rows[y] = "".join(chars.get((x, y), " ") for x in range(max(columns, default=-1) + 1))
        return rows


def _give_tracks(channel: list[_Segment]) -> tuple[int, bool]:
    """Gives each segment a row.

    Returns:
        How many rows there are, and whether no two lines lie on one another.
    """
    is_clear = True
    left = [segment for segment in channel if segment.start != segment.end]
    # Of lines to one side the outermost is the first, so that those beside it need not cross it.
    left.sort(key=lambda s: -s.start if s.end > s.start else s.start)
    rows: list[list[_Segment]] = []
    while left:
        # A segment leaves its column before another comes to it there.
        free = [s for s in left if not any(o.start == s.end for o in left if o is not s)]
        if not free:
            is_clear, free = False, left[:1]
        for segment in free:
            after = [o.track for row in rows for o in row if o.start == segment.end]
            first = max(after, default=-1) + 1
            while first < len(rows) and any(_overlap(segment, other) for other in rows[first]):
                first += 1
            rows += [[]] if first == len(rows) else []
            rows[first].append(segment)
            segment.track = first
        left = [segment for segment in left if segment not in free]
    return len(rows), is_clear


def _overlap(one: _Segment, other: _Segment) -> bool:
    ends, others = sorted((one.start, one.end)), sorted((other.start, other.end))
    return ends[0] <= others[1] and others[0] <= ends[1]


def _legend(graph: PipelineGraph, width: int) -> Iterator[str]:
    by_label: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        by_label.setdefault(edge.label, []).append(edge)
    for label, edges in by_label.items():
        joined = ", ".join(f"{edge.source} → {edge.target}" for edge in edges)
        line = f"{'│' if edges[0].payload else '┊'} {label}: {joined}"
        yield from textwrap.wrap(line, width, subsequent_indent="  ")
    choosing = [stage.name for stage in graph.stages if stage.chooses]
    if choosing:
        meaning = "each result goes to some of the stages that the lines lead to"
        yield from textwrap.wrap(f"{', '.join(choosing)}: {meaning}", width)
    for stage in graph.stages:
        if stage.waits_for:
            yield from textwrap.wrap(f"{stage.name} waits for {', '.join(stage.waits_for)}", width)
