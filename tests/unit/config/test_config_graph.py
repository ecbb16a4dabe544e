"""A pipeline drawn: its graph, where stages and edges go, and what each of the three formats says of them."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from edge_pipelines import LENDING, legacy, pipeline, stage
from generated_page import load_script

from sglang_omni.cli import main
from sglang_omni.config import PipelineConfig, plan_pipeline
from sglang_omni.config.draw.graph import PipelineGraph, pipeline_graph
from sglang_omni.config.draw.layout import Layout, lay_out
from sglang_omni.config.draw.mermaid import draw_mermaid
from sglang_omni.config.draw.svg import draw_svg
from sglang_omni.config.draw.text import draw_text
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"
UP, DOWN, LEFT, RIGHT = (0, -1), (0, 1), (-1, 0), (1, 0)
# Where each character of a line leads.
WAYS = {
    **dict.fromkeys("│┊", (UP, DOWN)),
    **dict.fromkeys("─┄", (LEFT, RIGHT)),
    **{"┌": (DOWN, RIGHT), "┐": (DOWN, LEFT), "└": (UP, RIGHT), "┘": (UP, LEFT)},
    "┼": (UP, DOWN, LEFT, RIGHT),
}


def graph_of(config: PipelineConfig) -> PipelineGraph:
    return pipeline_graph(plan_pipeline(config))


def speech_chat() -> PipelineGraph:
    return graph_of(SpeechChatPipelineConfig())


def random_graph(seed: int) -> PipelineGraph:
    """A graph with edges over several layers, now and then one that goes back, and short and long names."""
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    names = [f"{'stage' * rng.randint(0, 3)}{number}" for number in range(count)]
    stages = []
    for number, name in enumerate(names[:-1]):
        later = names[number + 1 :]
        targets = rng.sample(later, rng.randint(1, min(3, len(later))))
        if number and rng.random() < 0.15:
            targets.append(rng.choice(names[:number]))
        streams = rng.sample(later, rng.randint(0, 1))
        stages.append(stage(name, *targets, stream_to=streams))
    return graph_of(pipeline(*stages, stage(names[-1])))


def lines_in(drawing: str, graph: PipelineGraph) -> set[tuple[str, str]]:
    """The stages that the lines of a drawing lead from and to, found by following each from its tip."""
    rows = drawing.split("\n\n")[0].splitlines()
    cells = {(x, y): char for y, row in enumerate(rows) for x, char in enumerate(row)}
    boxes: dict[tuple[int, int], str] = {}
    for y, row in enumerate(rows):
        for found in re.finditer(r"(?<=│)( +)([^\s│┊]+)( +)(?=│)", row):
            left, top, name = found.start() - 1, y - 1, found[2]
            if name not in {s.name for s in graph.stages} or rows[top][left : left + 1] != "┌":
                continue
            bottom = next(b for b in range(y, len(rows)) if rows[b][left : left + 1] == "└")
            across = range(left, found.end() + 1)
            boxes |= {(x, b): name for x in across for b in range(top, bottom + 1)}
    assert {*boxes.values()} == {s.name for s in graph.stages}
    edges = set()
    for tip, char in cells.items():
        if tip in boxes or char not in "▼▲":
            continue
        ahead, (dx, dy) = (DOWN, UP) if char == "▼" else (UP, DOWN)
        target = boxes[tip[0], tip[1] + ahead[1]]
        x, y = tip
        while (x + dx, y + dy) not in boxes:
            x, y = x + dx, y + dy
            ways = WAYS[cells[x, y]]
            assert (-dx, -dy) in ways, drawing
            # Lines cross straight on; everywhere else there is one way out.
            if len(ways) == 2:
                dx, dy = next(way for way in ways if way != (-dx, -dy))
        edges.add((boxes[x + dx, y + dy], target))
    return edges


def test_the_graph_has_stages_edges_places_and_modalities() -> None:
    graph = speech_chat()
    stages = {stage.name: stage for stage in graph.stages}
    assert graph.inputs == ("text", "audio")
    assert [name for name, each in stages.items() if each.entry] == ["preprocess"]
    assert {n: s.outputs for n, s in stages.items() if s.terminal} == {
        "decode": ("text",),
        "speak": ("audio",),
    }
    assert (stages["decode"].process, stages["decode"].device, stages["decode"].place) == (
        "io",
        "cpu",
        "io · cpu",
    )
    assert [name for name, each in stages.items() if each.chooses] == ["preprocess", "transcribe"]
    edges = {(edge.source, edge.target): edge for edge in graph.edges}
    assert (edges["thinker", "speak"].payload, edges["thinker", "speak"].stream) == (False, True)
    assert (edges["thinker", "decode"].payload, edges["thinker", "decode"].stream) == (True, False)


def test_devices_replicas_and_transports_are_reported() -> None:
    graph = graph_of(
        pipeline(
            stage("a", "b", process="p"),
            stage("b", "c", process="p", edge_relays={"c": LENDING}),
            stage("c", "d", gpu=[0, 1], tp_size=2),
            stage("d", autoscaling={"min_replicas": 1, "max_replicas": 3}),
        )
    )
    assert [each.place for each in graph.stages] == [
        "p · cpu",
        "p · cpu",
        "gpus 0, 1",
        "cpu · 1 to 3 replicas",
    ]
    # A class of one's own is named without its module, which clients should not see.
    assert [edge.transport for edge in graph.edges] == ["local_object", "Lending", "shm"]


def test_stages_of_the_legacy_form_lead_to_those_after_them() -> None:
    graph = graph_of(pipeline(legacy("a"), legacy("b"), legacy("c")))
    assert [(e.source, e.target) for e in graph.edges] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(each.chooses for each in graph.stages)


@pytest.mark.parametrize("seed", range(40))
def test_no_two_spots_of_a_layer_overlap_and_edges_lead_on(seed: int) -> None:
    graph = random_graph(seed)
    layout = lay_out(graph, size=lambda spot: 3.0 if spot.stage else 1.0, gap=0.5)
    for layer in layout.layers:
        for one, other in pairwise(layer):
            room = sum(3.0 if spot.stage else 1.0 for spot in (one, other)) / 2 + 0.5
            assert layout.across[other] - layout.across[one] >= room - 1e-9
    for edge, path in zip(graph.edges, layout.paths, strict=True):
        assert (path[0].stage, path[-1].stage) == (edge.source, edge.target)
        assert not any(spot.stage for spot in path[1:-1])
        assert all(abs(one.layer - other.layer) == 1 for one, other in pairwise(path))


def crossings(layout: Layout) -> int:
    parts = [
        (one.layer, layout.across[one], layout.across[other])
        for path in layout.paths
        for one, other in pairwise(path)
    ]
    pairs = [(a, b) for n, a in enumerate(parts) for b in parts[n + 1 :] if a[0] == b[0]]
    return sum((a[1] - b[1]) * (a[2] - b[2]) < 0 for a, b in pairs)


@pytest.mark.parametrize("config", [SpeechChatPipelineConfig(), Qwen3OmniPipelineConfig(model_path="m")])
def test_edges_of_the_bundled_pipelines_do_not_cross(config: PipelineConfig) -> None:
    assert crossings(lay_out(graph_of(config))) == 0


@pytest.mark.parametrize("seed", range(60))
def test_the_lines_of_a_terminal_lead_from_stage_to_stage(seed: int) -> None:
    graph = random_graph(seed)
    drawing = draw_text(graph, width=60)
    assert lines_in(drawing, graph) == {(edge.source, edge.target) for edge in graph.edges}, drawing


def test_a_wide_pipeline_stays_within_the_terminal() -> None:
    encoders = [f"encoder_of_kind_{number}" for number in range(7)]
    graph = graph_of(
        pipeline(stage("split", *encoders), *(stage(name, "join") for name in encoders), stage("join"))
    )
    drawing = draw_text(graph)
    assert max(map(len, drawing.splitlines())) <= 80
    assert lines_in(drawing, graph) == {(edge.source, edge.target) for edge in graph.edges}


def test_the_text_tells_what_lines_carry() -> None:
    reported = draw_text(speech_chat())
    assert "┊ shm, stream: thinker → speak" in reported
    assert "preprocess, transcribe: each result goes to some" in reported
    assert "┊" in reported.split("\n\n")[0]


def test_mermaid_names_every_stage_and_edge_and_lets_no_text_out() -> None:
    graph = graph_of(pipeline(stage('a"]; click', "b#<b>"), stage("b#<b>")))
    text = draw_mermaid(graph)
    assert text.startswith("flowchart LR\n")
    assert 's0(["a#34;]; click<br/>cpu"])' in text
    assert "b#35;#60;b#62;" in text
    lines = draw_mermaid(speech_chat()).splitlines()
    assert '  s2 -.->|"shm, stream"| s4' in lines
    assert sum("-->|" in line or "-.->|" in line for line in lines) == len(speech_chat().edges)


def test_the_picture_is_well_formed_and_holds_everything() -> None:
    graph = graph_of(pipeline(stage("a<b>&", "c"), stage("c")))
    texts = [each.text for each in ET.fromstring(draw_svg(graph)).iter(f"{SVG}text")]
    assert "a<b>&" in texts
    root = ET.fromstring(draw_svg(speech_chat()))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = [each for each in root.iter(f"{SVG}rect") if "stage" in each.attrib["class"]]
    assert len(boxes) == 5
    for box in boxes:
        x, y, w, h = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= width - w
        assert 0 <= y <= height - h
    edges = [each for each in root.iter(f"{SVG}path") if "url(#head)" in each.attrib.get("marker-end", "")]
    assert len(edges) == 7
    assert sum(each.attrib.get("class") == "stream" for each in edges) == 1
    style = next(root.iter(f"{SVG}style")).text or ""
    assert "prefers-color-scheme: dark" in style


def test_the_pictures_in_the_docs_are_current() -> None:
    for name, text in load_script("pipeline_pictures").pictures().items():
        assert (ROOT / "docs" / name).read_text() == text, "run scripts/pipeline_pictures.py"


def test_the_command_draws_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(
        "model_path: none\nname: mine\nstages:\n"
        "- {name: first, factory: own_stages_of_graph.make, process: p, next: last}\n"
        "- {name: last, factory: own_stages_of_graph.make, process: q, terminal: true}\n"
    )
    (tmp_path / "own_stages_of_graph.py").write_text("def make():\n    return None\n")
    assert main(["config", "graph", str(config)]) == 0
    assert "shm: first → last" in capsys.readouterr().out
    assert main(["config", "graph", str(config), "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR")
    assert main(["config", "graph", str(config), "-o", str(tmp_path / "mine.svg")]) == 0
    assert capsys.readouterr().out == ""
    assert ET.parse(tmp_path / "mine.svg").getroot().tag == f"{SVG}svg"
    config.write_text(config.read_text().replace("next: last", "next: lost"))
    assert main(["config", "graph", str(config)]) == 1
    assert "did you mean 'last'" in capsys.readouterr().err
