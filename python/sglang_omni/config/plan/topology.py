"""The processes of a pipeline, and the instances of stages that share each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sglang_omni.config.plan.instances import StageInstance, instance_name, instances_of, stage_instances
from sglang_omni.config.plan.placement import GpuKey, StagePlacementPlan, gpu_key, gpu_label
from sglang_omni.config.schema import PipelineConfig, StageConfig


class ProcessGroup(NamedTuple):
    """A process of stages without TP.

    Attributes:
        name: The process.
        stage_names: The instances in it: stages, or one replica of each (``"talker@r1"``).
        gpu_id: The GPU of those that have one; None if all run on the CPU.
    """

    name: str
    stage_names: tuple[str, ...]
    gpu_id: int | None


@dataclass(frozen=True)
class ProcessTopologyPlan:
    """Every process of a pipeline, including those of replicas that autoscaling may add.

    Instances and their processes are named by ``config.instances.instance_name``.

    Attributes:
        groups: Processes of stages without TP, in the order of their first stages.
        stage_to_process: Instance of a stage without TP -> its process.
        tp_stage_to_processes: Instance of a TP stage -> the processes of its ranks, which host nothing else.
        node_of: Process -> its host; None for the coordinator's.
        all_gpus: Processes that see every GPU of their host, and not that of their stages alone.
    """

    groups: tuple[ProcessGroup, ...]
    stage_to_process: dict[str, str]
    tp_stage_to_processes: dict[str, tuple[str, ...]]
    node_of: dict[str, str | None]
    all_gpus: frozenset[str] = frozenset()


def build_process_topology_plan(
    config: PipelineConfig, placement_plan: StagePlacementPlan
) -> ProcessTopologyPlan:
    """Group the stages into processes by their ``process``, and merge those that ``fused_stages`` connect.

    Raises:
        ValueError: A process spans several GPUs or nodes, its stages have different numbers of replicas, two
            processes have one name, or processes share a GPU without declared memory fractions.
    """
    merged = _merged_process_names(config)
    members: dict[str, list[StageConfig]] = {}
    for stage in config.stages:
        if stage.tp_size == 1:
            members.setdefault(merged[_process_name(stage)], []).append(stage)
    processes = {
        instance_name(name, instances[0].replica): instances
        for name, stages in members.items()
        for instances in _replicas(name, stages)
    }
    split = {
        instance: tuple(
            f"{instance_name(_process_name(instance.stage), instance.replica)}_tp{rank}"
            for rank in range(instance.stage.tp_size)
        )
        for instance in stage_instances(config)
        if instance.stage.tp_size > 1
    }
    plan = ProcessTopologyPlan(
        groups=tuple(
            ProcessGroup(name, tuple(it.name for it in instances), _group_gpu(name, instances))
            for name, instances in processes.items()
        ),
        stage_to_process={it.name: name for name, instances in processes.items() for it in instances},
        tp_stage_to_processes={instance.name: names for instance, names in split.items()},
        node_of={name: instances[0].node for name, instances in processes.items()}
        | {name: instance.node for instance, names in split.items() for name in names},
        all_gpus=frozenset(
            name
            for name, instances in processes.items()
            if any(_names_gpus(it.stage, config) for it in instances)
        ),
    )
    _check_names(plan)
    _check_shared_gpus(config, placement_plan, plan)
    return plan


def _replicas(name: str, stages: list[StageConfig]) -> Iterator[tuple[StageInstance, ...]]:
    """The instances in each process that these stages share: one process, or one for each replica."""
    first = stages[0]
    for stage in stages[1:]:
        if (stage.num_replicas, stage.autoscaling) != (first.num_replicas, first.autoscaling):
            raise ValueError(
                f"process {name!r}: its stages are replicated together, but {first.name!r} and "
                f"{stage.name!r} have different num_replicas or autoscaling"
            )
    for instances in zip(*(instances_of(stage) for stage in stages), strict=True):
        nodes = {instance.node for instance in instances}
        if len(nodes) > 1:
            where = ", ".join(f"{instance.name!r} on {instance.host}" for instance in instances)
            raise ValueError(
                f"process {name!r} spans multiple nodes ({where}); give stages on different nodes different "
                "values of 'process'"
            )
        yield instances


def _process_name(stage: StageConfig) -> str:
    # Only a TP stage or a legacy one may leave its process unnamed.
    return stage.process or stage.name


def _merged_process_names(config: PipelineConfig) -> dict[str, str]:
    """Declared process -> the process it is merged into, which is the first of them in config order."""
    order = list(dict.fromkeys(_process_name(stage) for stage in config.stages))
    merged = {name: name for name in order}
    process_of = {stage.name: _process_name(stage) for stage in config.stages}
    for group in config.fused_stages:
        joined = {merged[process_of[name]] for name in group}
        first = min(joined, key=order.index)
        merged = {name: first if target in joined else target for name, target in merged.items()}
    return merged


def _group_gpu(name: str, members: tuple[StageInstance, ...]) -> int | None:
    gpus = {gpu for instance in members for gpu in instance.gpu_ids}
    if len(gpus) > 1:
        where = ", ".join(f"{it.name!r} on {it.stage.gpu}" for it in members if it.stage.gpu is not None)
        raise ValueError(
            f"process {name!r} spans multiple GPUs {sorted(gpus)} ({where}); "
            "give stages on different GPUs different values of 'process'"
        )
    return next(iter(gpus), None)


def _names_gpus(stage: StageConfig, config: PipelineConfig) -> bool:
    """True if a stage's arguments or relay name a GPU by its number, besides its ``gpu``.

    Such numbers count all GPUs of the machine, so that its process must see them all.
    """
    own = stage.executor.args if stage.executor is not None else stage.factory_args
    arguments = {**own, **config.runtime_overrides.get(stage.name, {})}
    devices = [arguments.get("device"), stage.relay.explicit_device if stage.relay is not None else None]
    return "gpu_id" in arguments or any(str(device).startswith("cuda:") for device in devices)


def _check_names(plan: ProcessTopologyPlan) -> None:
    groups = {group.name: group.stage_names for group in plan.groups}
    owner: dict[str, str] = {}
    for stage, processes in plan.tp_stage_to_processes.items():
        for process in processes:
            if process in owner:
                raise ValueError(
                    f"stage {stage!r}: Duplicate TP process names: {process!r} is also that of stage "
                    f"{owner[process]!r}; give one of them another 'process'"
                )
            if process in groups:
                raise ValueError(
                    f"stage {stage!r}: the names of its TP processes collide with the process {process!r} of "
                    f"stages {list(groups[process])}; a TP process hosts nothing else"
                )
            owner[process] = stage


def _check_shared_gpus(
    config: PipelineConfig, placement_plan: StagePlacementPlan, plan: ProcessTopologyPlan
) -> None:
    if not config.placement.require_memory_fraction_for_colocation:
        return
    sharing: dict[GpuKey, set[str]] = {}
    for instance in stage_instances(config):
        process = plan.stage_to_process.get(instance.name)
        ranks = plan.tp_stage_to_processes.get(instance.name) or (process or "",) * len(instance.gpu_ids)
        for gpu_id, name in zip(instance.gpu_ids, ranks, strict=False):
            sharing.setdefault(gpu_key(instance.node, gpu_id), set()).add(name)
    for key, gpu in placement_plan.gpus.items():
        processes = sharing[key]
        if len(processes) > 1 and gpu.missing_fraction_stage_names:
            raise ValueError(
                f"GPU {gpu_label(gpu.node, gpu.gpu_id)} is shared by multiple process groups without "
                f"runtime.resources.total_gpu_memory_fraction on {list(gpu.missing_fraction_stage_names)}; "
                f"every stage of processes {sorted(processes)} must declare it"
            )
