"""What a pipeline's processes ask of a Ray cluster, and whether there is room."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import ray

from sglang_omni.config import PipelineConfig
from sglang_omni.config.instances import is_anywhere, stage_instances
from sglang_omni.pipeline.specs import ProcessSpec

# What a process asks for, of which no stage says it. With none, Ray would put any number on one core.
_DEFAULT_CPUS = 1.0
# How much of a node's custom resource is taken: it says where, not how much.
_LABEL = 0.001
# Ray refuses a bundle without anything in it.
_SOME_CPU = 0.001


@dataclass(frozen=True)
class Demand:
    """What one process asks for."""

    num_cpus: float
    num_gpus: float


def demand_of(spec: ProcessSpec) -> Demand:
    """CPUs as its stages say, one where none does; GPUs as its placement says.

    Stages that declare what fraction of a GPU's memory they use get that fraction of a GPU; the ranks of a
    tensor-parallel stage must not share one, and get a whole one each.
    """
    stages = [launch.stage for launch in spec.stages if launch.stage is not None]
    cpus = [
        resources.num_cpus for stage in stages if (resources := stage.runtime.resources).num_cpus is not None
    ]
    on_gpu = [
        launch.stage for launch in spec.stages if launch.gpu_id is not None and launch.stage is not None
    ]
    fractions = [stage.runtime.resources.total_gpu_memory_fraction for stage in on_gpu]
    declared = [fraction for fraction in fractions if fraction is not None]
    whole = len(declared) < len(fractions) or spec.stages[0].tp_size > 1
    return Demand(
        num_cpus=sum(cpus) if cpus else _DEFAULT_CPUS,
        num_gpus=0.0 if not on_gpu else 1.0 if whole else min(sum(declared), 1.0),
    )


def most_cpus(config: PipelineConfig) -> int:
    """No fewer than all of its processes ask for, every replica included."""
    asked = (
        max(it.stage.runtime.resources.num_cpus or 0, _DEFAULT_CPUS) * it.stage.tp_size
        for it in stage_instances(config)
    )
    return math.ceil(sum(asked))


@dataclass
class Bundle:
    """Processes that are to be on one node, and what they ask for together."""

    node: str
    processes: dict[str, Demand] = field(default_factory=dict)

    def resources(self) -> dict[str, float]:
        """As Ray takes them."""
        cpus = sum(demand.num_cpus for demand in self.processes.values())
        gpus = sum(demand.num_gpus for demand in self.processes.values())
        asked = {"CPU": max(cpus, _SOME_CPU)}
        if gpus:
            # Of more than one GPU Ray gives whole ones only.
            asked["GPU"] = math.ceil(gpus) if gpus > 1 else gpus
        if not is_anywhere(self.node):
            asked[self.node] = _LABEL
        return asked

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.processes))
        asked = {name: amount for name, amount in self.resources().items() if name != self.node}
        where = f" on a node with the resource {self.node!r}" if not is_anywhere(self.node) else ""
        return f"process{'es' * (len(self.processes) > 1)} {names} ({_text(asked)}{where})"


def describe_shortage(bundles: Iterable[Bundle]) -> str:
    """Which of the bundles the cluster has no room for, what they ask for, and what there is."""
    bundles = list(bundles)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    impossible = [bundle for bundle in bundles if not any(_holds(node, bundle) for node in nodes)]
    there = "; ".join(f"{node['NodeManagerAddress']}: {_text(_plain(node['Resources']))}" for node in nodes)
    return (
        f"{', '.join(map(str, impossible or bundles))} "
        f"{'fit on no node' if impossible else 'do not fit together beside what runs'}. "
        f"The cluster has {there}; free of it: {_text(_plain(ray.available_resources())) or 'nothing'}"
    )


def _holds(node: dict[str, Any], bundle: Bundle) -> bool:
    has = node["Resources"]
    return all(has.get(name, 0.0) >= amount for name, amount in bundle.resources().items())


def _plain(resources: dict[str, float]) -> dict[str, float]:
    """Without what Ray adds by itself: memory, addresses, and what is set aside for placement groups."""
    return {
        name: amount
        for name, amount in resources.items()
        if "memory" not in name and "_group_" not in name and not name.startswith(("node:", "bundle_group"))
    }


def _text(resources: dict[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()))
