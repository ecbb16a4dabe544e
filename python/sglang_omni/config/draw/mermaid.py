"""A pipeline's graph as a Mermaid flowchart, which GitHub and many documentation tools draw."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_omni.config.draw.graph import GraphStage, PipelineGraph


def draw_mermaid(graph: PipelineGraph) -> str:
    """The graph as ``flowchart LR``. Dotted lines carry streams alone; ``◇`` marks a stage that chooses."""
    ids = {stage.name: f"s{number}" for number, stage in enumerate(graph.stages)}
    return "\n".join(["flowchart LR", *(f"  {line}" for line in _lines(graph, ids))])


def _lines(graph: PipelineGraph, ids: dict[str, str]) -> Iterator[str]:
    for stage in graph.stages:
        left, right = ("([", "])") if stage.entry or stage.terminal else ("[", "]")
        yield f'{ids[stage.name]}{left}"{_label(stage)}"{right}'
    for stage in graph.stages:
        if stage.entry:
            yield f'request(("{_escaped(", ".join(graph.inputs) or "request")}")) --> {ids[stage.name]}'
        if stage.terminal:
            outputs = _escaped(", ".join(stage.outputs) or "answer")
            yield f'{ids[stage.name]} --> {ids[stage.name]}_out(("{outputs}"))'
    for edge in graph.edges:
        arrow = "-->" if edge.payload else "-.->"
        yield f'{ids[edge.source]} {arrow}|"{_escaped(edge.label)}"| {ids[edge.target]}'


def _label(stage: GraphStage) -> str:
    name = stage.name + (" ◇" if stage.chooses else "")
    return f"{_escaped(name)}<br/>{_escaped(stage.place)}"


def _escaped(text: str) -> str:
    """Text between Mermaid's quotes, in which ``#`` begins a character's code and ``<`` a tag."""
    for char in '#&<>"`':
        text = text.replace(char, f"\0{ord(char)};")
    return text.replace("\0", "#")
