"""A pipeline as a graph to be drawn: its stages with their places, and its edges with what carries them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sglang_omni.config.plan.edges import Edge
from sglang_omni.config.plan.instances import instances_of, stage_of
from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.relay_backends import is_class_path


@dataclass(frozen=True)
class GraphStage:
    """A stage as it is drawn. None of it is a path of a module or the name of a host.

    Attributes:
        name: The stage.
        process: The process that it shares; its own name if its ranks have processes of their own.
        device: ``cpu``, ``gpu 0`` or ``gpus 0, 1``.
        replicas: ``2`` or, if their number follows the load, ``1 to 4``; empty if it has none.
        entry: True if requests come in here.
        terminal: True if its results answer requests.
        outputs: The modalities of its results, if it is terminal and they are known.
        waits_for: The stages whose payloads it merges.
        chooses: True if a function picks for each result some of the stages that it may go to.
    """

    name: str
    process: str
    device: str
    replicas: str
    entry: bool
    terminal: bool
    outputs: tuple[str, ...]
    waits_for: tuple[str, ...]
    chooses: bool

    @property
    def place(self) -> str:
        """Process, device and replicas in one line."""
        parts = [self.process if self.process != self.name else "", self.device]
        parts.append(f"{self.replicas} replicas" if self.replicas else "")
        return " · ".join(filter(None, parts))


@dataclass(frozen=True)
class GraphEdge:
    """What one stage sends to another.

    Attributes:
        source: The stage that sends.
        target: The stage that receives.
        transport: What carries it, such as ``shm`` or ``nixl + cuda_ipc``; several if replicas differ.
        payload: True if it sends whole results.
        stream: True if it sends chunks while it works.
    """

    source: str
    target: str
    transport: str
    payload: bool
    stream: bool

    @property
    def label(self) -> str:
        return self.transport + (", stream" if self.stream else "")


@dataclass(frozen=True)
class PipelineGraph:
    """
    Attributes:
        name: The pipeline.
        inputs: The modalities that it takes, if declared.
        stages: In the order of the config.
        edges: In the order of the stages that send.
    """

    name: str
    inputs: tuple[str, ...]
    stages: tuple[GraphStage, ...]
    edges: tuple[GraphEdge, ...]

    def as_values(self) -> dict[str, Any]:
        """The graph as plain values."""
        return {
            "name": self.name,
            "inputs": list(self.inputs),
            "stages": [
                {
                    "name": stage.name,
                    "process": stage.process,
                    "device": stage.device,
                    "replicas": stage.replicas,
                    "entry": stage.entry,
                    "terminal": stage.terminal,
                    "outputs": list(stage.outputs),
                    "waits_for": list(stage.waits_for),
                    "chooses": stage.chooses,
                }
                for stage in self.stages
            ],
            "edges": [
                {
                    "source": edge.source,
                    "target": edge.target,
                    "transport": edge.transport,
                    "payload": edge.payload,
                    "stream": edge.stream,
                }
                for edge in self.edges
            ],
        }


def pipeline_graph(plan: PipelinePlan) -> PipelineGraph:
    """The graph of a pipeline.

    A stage of the legacy form may send its result to any stage, as its ``get_next`` says: it is drawn with
    edges to those after it.
    """
    config = plan.config
    return PipelineGraph(
        name=config.name or "pipeline",
        inputs=tuple(getattr(config, "input_modalities", ())),
        stages=tuple(_stage(stage, plan) for stage in config.stages),
        edges=tuple(_edges(plan)),
    )


def _stage(stage: StageConfig, plan: PipelinePlan) -> GraphStage:
    config = plan.config
    handler = stage.input_handler
    sources = stage.wait_for or (handler.sources if handler is not None else None) or ()
    least, most = stage.min_replicas, stage.max_replicas
    return GraphStage(
        name=stage.name,
        process=stage_of(plan.processes.stage_to_process.get(instances_of(stage)[0].name, stage.name)),
        device=_device(stage.gpu_ids),
        replicas="" if not stage.is_replicated else str(most) if least == most else f"{least} to {most}",
        entry=stage.name == config.resolved_entry_stage,
        terminal=stage.terminal,
        outputs=_outputs(stage, config),
        waits_for=tuple(sources),
        chooses=stage.route_fn is not None or stage.get_next is not None,
    )


def _device(gpu_ids: list[int]) -> str:
    numbers = ", ".join(map(str, dict.fromkeys(gpu_ids)))
    return "cpu" if not gpu_ids else f"gpus {numbers}" if "," in numbers else f"gpu {numbers}"


def _outputs(stage: StageConfig, config: PipelineConfig) -> tuple[str, ...]:
    declared: dict[str, str] = getattr(config, "terminal_modalities", {})
    if stage.name in declared:
        return (declared[stage.name],)
    if config.terminal_stages == [stage.name]:
        return tuple(getattr(config, "output_modalities", ()))
    return ()


def _edges(plan: PipelinePlan) -> Iterator[GraphEdge]:
    order = {stage.name: index for index, stage in enumerate(plan.config.stages)}
    between: dict[tuple[str, str], list[Edge]] = {}
    for edge in plan.edges:
        source, target = stage_of(edge.source), stage_of(edge.target)
        is_legacy = plan.config.stage(source).get_next is not None
        if not is_legacy or order[source] < order[target]:
            between.setdefault((source, target), []).append(edge)
    for (source, target), edges in between.items():
        yield GraphEdge(
            source,
            target,
            transport=" or ".join(dict.fromkeys(_short(edge.label) for edge in edges)),
            payload=any("payload" in edge.kinds for edge in edges),
            stream=any("stream" in edge.kinds for edge in edges),
        )


def _short(label: str) -> str:
    """A transport without the module of a class of one's own."""
    return label.rpartition(".")[2] if is_class_path(label.split(" ")[0]) else label
