"""The CPUs and GPUs that a pipeline's processes ask of a Ray cluster, and whether it has them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import ray

from sglang_omni.config.plan.instances import is_placeholder, stage_instances
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.pipeline.specs import ProcessSpec

# CPUs of a process none of whose stages sets ``num_cpus``. With none, Ray would put any number on one core.
_DEFAULT_CPUS = 1.0
# The amount that is taken of a node's custom resource, which says where and not how much.
_LABEL = 0.001
# Ray refuses an empty bundle.
_SOME_CPU = 0.001


@dataclass(frozen=True)
class Demand:
    """The CPUs and GPUs of one process."""

    num_cpus: float
    num_gpus: float


def demand_of(spec: ProcessSpec) -> Demand:
    """The CPUs that a process's stages set, one if none does, and the GPUs of its placement.

    Stages that declare their fraction of a GPU's memory get that fraction of a GPU. The ranks of a
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
    """An upper bound of the CPUs of all processes, every replica included."""
    amounts = (
        max(it.stage.runtime.resources.num_cpus or 0, _DEFAULT_CPUS) * it.stage.tp_size
        for it in stage_instances(config)
    )
    return math.ceil(sum(amounts))


@dataclass
class Bundle:
    """Processes that must be on one node, and their demands."""

    node: str
    processes: dict[str, Demand] = field(default_factory=dict)

    def resources(self) -> dict[str, float]:
        """The demands together, under Ray's names."""
        cpus = sum(demand.num_cpus for demand in self.processes.values())
        gpus = sum(demand.num_gpus for demand in self.processes.values())
        amounts = {"CPU": max(cpus, _SOME_CPU)}
        if gpus:
            # Ray gives out more than one GPU only as whole ones.
            amounts["GPU"] = math.ceil(gpus) if gpus > 1 else gpus
        if not is_placeholder(self.node):
            amounts[self.node] = _LABEL
        return amounts

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.processes))
        amounts = {name: amount for name, amount in self.resources().items() if name != self.node}
        where = f" on a node with the resource {self.node!r}" if not is_placeholder(self.node) else ""
        return f"process{'es' * (len(self.processes) > 1)} {names} ({_text(amounts)}{where})"


def describe_shortage(bundles: Iterable[Bundle]) -> str:
    """The bundles that do not fit in the cluster, their demands, and the cluster's resources."""
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
    """Without Ray's own entries: memory, addresses, and reserves of placement groups."""
    return {
        name: amount
        for name, amount in resources.items()
        if "memory" not in name and "_group_" not in name and not name.startswith(("node:", "bundle_group"))
    }


def _text(resources: dict[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()))
