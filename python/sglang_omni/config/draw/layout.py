"""Where the stages and edges of a drawn pipeline go: in layers, without boxes in the way of an edge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_omni.config.draw.graph import GraphEdge, PipelineGraph

_SWEEPS = 8
# How much more a bend in a long edge counts than a stage that is not in the middle of its neighbours.
_STRAIGHT = 4.0


@dataclass(frozen=True)
class Spot:
    """A place in a layer: a stage's, or one where a long edge passes.

    Attributes:
        stage: The stage; empty for an edge that passes.
        edge: The edge that passes, by its number; -1 for a stage.
        layer: The layer, 0 for the first.
    """

    stage: str
    edge: int
    layer: int


@dataclass(frozen=True)
class Layout:
    """
    Attributes:
        layers: The spots of each layer, in their order across.
        across: Where the middle of each spot is, from 0, in the unit of the sizes.
        paths: The spots that each edge goes by, from its source to its target, in the order of the edges.
        width: From the first spot's side to the last one's.
    """

    layers: tuple[tuple[Spot, ...], ...]
    across: dict[Spot, float]
    paths: tuple[tuple[Spot, ...], ...]
    width: float

    def spot(self, stage: str) -> Spot:
        return next(spot for layer in self.layers for spot in layer if spot.stage == stage)


def lay_out(
    graph: PipelineGraph,
    *,
    size: Callable[[Spot], float] = lambda spot: 1.0 if spot.stage else 0.12,
    gap: float = 0.14,
    most_in_layer: int | None = None,
) -> Layout:
    """Place a graph's stages in layers, each after all that send to it.

    Args:
        graph: The graph. An edge that closes a circle goes back to an earlier layer.
        size: How much room a spot takes across.
        gap: The least room between two spots.
        most_in_layer: The most stages in a layer; None for any number.
    """
    layer_of = _layers(graph, most_in_layer)
    layers: list[list[Spot]] = [[] for _ in range(max(layer_of.values()) + 1)]
    spots = {stage.name: Spot(stage.name, -1, layer_of[stage.name]) for stage in graph.stages}
    for spot in spots.values():
        layers[spot.layer].append(spot)
    paths = [_path(number, spots[e.source], spots[e.target], layers) for number, e in enumerate(graph.edges)]
    beside: dict[Spot, list[Spot]] = {spot: [] for layer in layers for spot in layer}
    for path in paths:
        for one, other in itertools.pairwise(path):
            beside[one].append(other)
            beside[other].append(one)
    layers = _ordered(layers, beside)
    across = _positions(layers, beside, size, gap)
    left = min(across[layer[0]] - size(layer[0]) / 2 for layer in layers)
    across = {spot: middle - left for spot, middle in across.items()}
    width = max(across[layer[-1]] + size(layer[-1]) / 2 for layer in layers)
    return Layout(tuple(map(tuple, layers)), across, tuple(paths), width)


def laid_out_values(graph: PipelineGraph) -> dict[str, Any]:
    """The graph as plain values with where everything goes, for a page that draws it.

    A stage takes 1 across. ``path`` has the layer and the place across of each spot that an edge goes by.
    """
    layout, values = lay_out(graph), graph.as_values()
    for stage in values["stages"]:
        spot = layout.spot(stage["name"])
        stage |= {"layer": spot.layer, "across": round(layout.across[spot], 3)}
    for edge, path in zip(values["edges"], layout.paths, strict=True):
        edge["path"] = [[spot.layer, round(layout.across[spot], 3)] for spot in path]
    return values | {"layers": len(layout.layers), "width": round(layout.width, 3)}


def _layers(graph: PipelineGraph, most_in_layer: int | None) -> dict[str, int]:
    """The layer of each stage: one after the last of its senders, or later if that one is full."""
    senders: dict[str, list[str]] = {stage.name: [] for stage in graph.stages}
    for edge in _forward(graph):
        senders[edge.target].append(edge.source)
    layer_of: dict[str, int] = {}
    held: dict[int, int] = {}
    while len(layer_of) < len(senders):
        ready = [name for name in senders if name not in layer_of and layer_of.keys() >= {*senders[name]}]
        for name in ready:
            layer = max((layer_of[sender] + 1 for sender in senders[name]), default=0)
            while most_in_layer is not None and held.get(layer, 0) >= most_in_layer:
                layer += 1
            layer_of[name] = layer
            held[layer] = held.get(layer, 0) + 1
    return layer_of


def _forward(graph: PipelineGraph) -> Iterable[GraphEdge]:
    """The edges without those that close a circle, as seen from the entry."""
    targets: dict[str, list[GraphEdge]] = {stage.name: [] for stage in graph.stages}
    for edge in graph.edges:
        targets[edge.source].append(edge)
    done: set[str] = set()
    kept: list[GraphEdge] = []

    def visit(name: str, above: frozenset[str]) -> None:
        done.add(name)
        for edge in targets[name]:
            if edge.target in above | {name}:
                continue
            kept.append(edge)
            if edge.target not in done:
                visit(edge.target, above | {name})

    for stage in sorted(graph.stages, key=lambda stage: not stage.entry):
        if stage.name not in done:
            visit(stage.name, frozenset())
    return kept


def _path(number: int, source: Spot, target: Spot, layers: list[list[Spot]]) -> tuple[Spot, ...]:
    """The spots of an edge. Those where it passes are added to their layers."""
    step = 1 if source.layer < target.layer else -1
    between = [Spot("", number, layer) for layer in range(source.layer + step, target.layer, step)]
    for spot in between:
        layers[spot.layer].append(spot)
    return (source, *between, target)


def _ordered(layers: list[list[Spot]], beside: dict[Spot, list[Spot]]) -> list[list[Spot]]:
    """The layers with their spots in the order in which few edges cross."""
    best, fewest = layers, _crossings(layers, beside)
    for sweep in range(_SWEEPS):
        layers = [list(layer) for layer in layers]
        down = sweep % 2 == 0
        indices = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        for index in indices:
            fixed = {spot: place for place, spot in enumerate(layers[index - 1 if down else index + 1])}
            places = {
                spot: _mean([fixed[other] for other in beside[spot] if other in fixed], place)
                for place, spot in enumerate(layers[index])
            }
            layers[index].sort(key=places.__getitem__)
        crossings = _crossings(layers, beside)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(layers: list[list[Spot]], beside: dict[Spot, list[Spot]]) -> int:
    count = 0
    for upper, lower in itertools.pairwise(layers):
        place = {spot: index for index, spot in enumerate(lower)}
        ends = [sorted(place[other] for other in beside[spot] if other in place) for spot in upper]
        for index, mine in enumerate(ends):
            for theirs in ends[index + 1 :]:
                count += sum(a > b for a in mine for b in theirs)
    return count


def _positions(
    layers: list[list[Spot]],
    beside: dict[Spot, list[Spot]],
    size: Callable[[Spot], float],
    gap: float,
) -> dict[Spot, float]:
    """The middle of each spot: near those that it is connected with, and apart from its neighbours.

    No layer goes beyond the room that the widest one needs.
    """
    across: dict[Spot, float] = {}
    widths = [sum(map(size, layer)) + gap * (len(layer) - 1) for layer in layers]
    for layer in layers:
        at = 0.0
        for spot in layer:
            across[spot] = at + size(spot) / 2
            at += size(spot) + gap
    for sweep in range(2 * _SWEEPS):
        in_order = [*zip(layers, widths, strict=True)]
        for layer, width in in_order if sweep % 2 else reversed(in_order):
            wanted, weights = [], []
            for spot in layer:
                pulls = [(across[o], 1.0 if spot.stage or o.stage else _STRAIGHT) for o in beside[spot]]
                total = sum(weight for _, weight in pulls)
                at = sum(place * weight for place, weight in pulls) / total if pulls else across[spot]
                wanted.append(at)
                weights.append(1.0 if spot.stage else _STRAIGHT)
            apart = [(size(a) + size(b)) / 2 + gap for a, b in itertools.pairwise(layer)]
            low = size(layer[0]) / 2
            places = keep_apart(wanted, weights, apart, low=low, high=low + max(widths) - width)
            across.update(zip(layer, places, strict=True))
    return across


def keep_apart(
    wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float], *, low: float, high: float
) -> list[float]:
    """The places nearest to those wanted, by weighted squares, that are at least ``apart`` from one another.

    Without what is kept between them, the places must not fall: this is isotonic regression, solved by
    pooling adjacent violators.

    Args:
        wanted: Where each would best be.
        weights: How much it counts that each is there.
        apart: How far each is from the next, at least.
        low: The least that the first may be.
        high: The most that the first may be if all are as near to one another as they may.
    """
    offsets = [0.0]
    for distance in apart:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, float, int]] = []  # weighted sum, weight, members
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        pool = ((want - offset) * weight, weight, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    levels = [total / weight for total, weight, members in pools for _ in range(members)]
    return [min(max(level, low), high) + offset for level, offset in zip(levels, offsets, strict=True)]
