"""Which stages share a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sglang_omni.config.placement import StagePlacementPlan, resolve_stage_gpu_ids
from sglang_omni.config.schema import PipelineConfig, StageConfig


class ProcessGroup(NamedTuple):
    """A process of stages without TP. ``gpu_id`` is None where all of them run on the CPU."""

    name: str
    stage_names: tuple[str, ...]
    gpu_id: int | None


@dataclass(frozen=True)
class ProcessTopologyPlan:
    """Every process of a pipeline.

    Attributes:
        groups: Processes of stages without TP, in the order of their first stages.
        stage_to_process: Stage without TP -> its process.
        tp_stage_to_processes: TP stage -> the processes of its ranks. They host nothing else.
    """

    groups: tuple[ProcessGroup, ...]
    stage_to_process: dict[str, str]
    tp_stage_to_processes: dict[str, tuple[str, ...]]


def build_process_topology_plan(
    config: PipelineConfig, placement_plan: StagePlacementPlan
) -> ProcessTopologyPlan:
    """Group the stages into processes: by their ``process``, merged where ``fused_stages`` connect them.

    Raises:
        ValueError: a group spans several GPUs, two processes have one name, or processes share a
            GPU without declared memory fractions.
    """
    stages = {stage.name: stage for stage in config.stages}
    merged = _merged_process_names(config)
    members: dict[str, list[str]] = {}
    for stage in config.stages:
        if stage.tp_size == 1:
            members.setdefault(merged[_process_name(stage)], []).append(stage.name)
    plan = ProcessTopologyPlan(
        groups=tuple(
            ProcessGroup(name, tuple(names), _group_gpu(name, [stages[n] for n in names], placement_plan))
            for name, names in members.items()
        ),
        stage_to_process={stage: name for name, names in members.items() for stage in names},
        tp_stage_to_processes={
            stage.name: tuple(f"{_process_name(stage)}_tp{rank}" for rank in range(stage.tp_size))
            for stage in config.stages
            if stage.tp_size > 1
        },
    )
    _check_names(plan)
    _check_shared_gpus(config, placement_plan, plan)
    return plan


def _process_name(stage: StageConfig) -> str:
    # Only a TP stage, or one in the earlier form, may leave its process unnamed.
    return stage.process or stage.name


def _merged_process_names(config: PipelineConfig) -> dict[str, str]:
    """Process name -> the name of the process it became part of, which is the first one's in config order."""
    order = list(dict.fromkeys(_process_name(stage) for stage in config.stages))
    merged = {name: name for name in order}
    process_of = {stage.name: _process_name(stage) for stage in config.stages}
    for group in config.fused_stages:
        joined = {merged[process_of[name]] for name in group}
        first = min(joined, key=order.index)
        merged = {name: first if target in joined else target for name, target in merged.items()}
    return merged


def _group_gpu(name: str, members: list[StageConfig], placement_plan: StagePlacementPlan) -> int | None:
    gpus = {
        gpu for stage in members for gpu in resolve_stage_gpu_ids(placement_plan, stage) if gpu is not None
    }
    if len(gpus) > 1:
        where = ", ".join(f"{s.name!r} on {s.gpu}" for s in members if s.gpu is not None)
        raise ValueError(
            f"process {name!r} spans multiple GPUs {sorted(gpus)} ({where}); "
            "give stages on different GPUs different values of 'process'"
        )
    return next(iter(gpus), None)


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
    for gpu in placement_plan.gpus.values():
        processes = set()
        for name in gpu.stage_names:
            if name in plan.stage_to_process:
                processes.add(plan.stage_to_process[name])
            else:
                rank = placement_plan.stages[name].gpu_ids.index(gpu.gpu_id)
                processes.add(plan.tp_stage_to_processes[name][rank])
        if len(processes) > 1 and gpu.missing_fraction_stage_names:
            raise ValueError(
                f"GPU {gpu.gpu_id} is shared by multiple process groups without "
                f"runtime.resources.total_gpu_memory_fraction on {list(gpu.missing_fraction_stage_names)}; "
                f"every stage of processes {sorted(processes)} must declare it"
            )
