"""The placement of stages on GPUs, and the check of their memory budgets."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Protocol

from sglang_omni.config.imports import import_callable
from sglang_omni.config.plan.instances import host_text, instances_of
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.rules import check_gpu_count

# Fractions are written as decimal numbers: 0.1 + 0.2 + 0.7 must fit a limit of 1.0.
_ROUNDING = 1e-9


# A GPU's id on the coordinator's host, or a node and the id that the GPU has there.
GpuKey = int | tuple[str, int]


@dataclass(frozen=True)
class StagePlacement:
    """A stage on GPUs.

    Attributes:
        stage_name: The stage.
        gpu_ids: The GPU of each rank, replica after replica.
        tp_size: The number of ranks.
        total_gpu_memory_fraction: The fraction of its GPU's memory that each rank may use; None if
            undeclared.
    """

    stage_name: str
    gpu_ids: tuple[int, ...]
    tp_size: int
    total_gpu_memory_fraction: float | None


@dataclass(frozen=True)
class GpuPlacement:
    """The stages that share a GPU.

    Attributes:
        gpu_id: The GPU's id on its host.
        stage_names: The stages, in config order.
        total_gpu_memory_fraction: The sum of the declared fractions.
        missing_fraction_stage_names: The stages that declare none.
        node: The GPU's host; None for the coordinator's.
    """

    gpu_id: int
    stage_names: tuple[str, ...]
    total_gpu_memory_fraction: float
    missing_fraction_stage_names: tuple[str, ...]
    node: str | None = None


@dataclass(frozen=True)
class StagePlacementPlan:
    """Stages on GPUs by name (stages on the CPU are absent), and their GPUs by ``gpu_key``."""

    stages: dict[str, StagePlacement]
    gpus: dict[GpuKey, GpuPlacement]


class PlacementPolicy(Protocol):
    """A pipeline's own placement rules; ``PipelineConfig.placement_policy`` names the class."""

    def validate(self, config: PipelineConfig, plan: StagePlacementPlan) -> None:
        """Raise ValueError for a plan that must not run."""
        ...


def build_stage_placement_plan(config: PipelineConfig) -> StagePlacementPlan:
    """Place every stage, and check GPU ids, memory budgets and the pipeline's own policy.

    Raises:
        ValueError: A TP stage lacks a GPU of its own for each rank, declared memory exceeds the placement's
            limit, or the policy refuses the placement.
        ImportError: The policy's path leads nowhere.
        TypeError: The policy has no ``validate``.
    """
    stages: dict[str, StagePlacement] = {}
    on_gpu: dict[tuple[str, int], list[StagePlacement]] = {}
    for stage in config.stages:
        _refuse_untyped_budget(stage, config)
        gpu_ids = _stage_gpu_ids(stage)
        if not gpu_ids:
            continue
        placement = StagePlacement(
            stage_name=stage.name,
            gpu_ids=gpu_ids,
            tp_size=stage.tp_size,
            total_gpu_memory_fraction=stage.runtime.resources.total_gpu_memory_fraction,
        )
        stages[stage.name] = placement
        for instance in instances_of(stage):
            for gpu_id in instance.gpu_ids:
                on_gpu.setdefault((instance.node or "", gpu_id), []).append(placement)
    gpus = (_gpu_placement(node, gpu_id, placements) for (node, gpu_id), placements in sorted(on_gpu.items()))
    plan = StagePlacementPlan(stages=stages, gpus={gpu_key(gpu.node, gpu.gpu_id): gpu for gpu in gpus})
    limit = config.placement.max_total_gpu_memory_fraction_per_gpu
    for gpu in plan.gpus.values():
        if gpu.total_gpu_memory_fraction > limit + _ROUNDING:
            raise ValueError(
                f"GPU {gpu_label(gpu.node, gpu.gpu_id)}: the total_gpu_memory_fraction of stages "
                f"{list(gpu.stage_names)} adds up to {gpu.total_gpu_memory_fraction:.3f}, which exceeds "
                f"placement limit {limit:.3f}"
            )
    if config.placement_policy is not None:
        _apply_policy(config.placement_policy, config, plan)
    return plan


def gpu_key(node: str | None, gpu_id: int) -> GpuKey:
    """The key of a GPU in ``StagePlacementPlan.gpus``."""
    return gpu_id if not node else (node, gpu_id)


def gpu_label(node: str | None, gpu_id: int) -> str:
    """The GPU as text: ``0``, or ``0 of node 'b'``."""
    return str(gpu_id) if not node else f"{gpu_id} of {host_text(node)}"


def resolve_stage_gpu_ids(plan: StagePlacementPlan, stage: StageConfig) -> list[int | None]:
    """The GPU of each rank of the stage, replica after replica; None for each rank on the CPU."""
    placement = plan.stages.get(stage.name)
    return list(placement.gpu_ids) if placement is not None else [None] * stage.tp_size


def _stage_gpu_ids(stage: StageConfig) -> tuple[int, ...]:
    gpu_ids = tuple(stage.gpu_ids)
    if stage.tp_size > 1 and isinstance(stage.gpu, int):
        raise ValueError(
            f"stage {stage.name!r}: TP placement requires a list of {stage.tp_size} unique GPU ids, "
            f"got scalar gpu={stage.gpu}"
        )
    check_gpu_count(stage)
    if any(len(set(instance.gpu_ids)) != len(instance.gpu_ids) for instance in instances_of(stage)):
        raise ValueError(
            f"stage {stage.name!r}: TP placement requires a list of {stage.tp_size} unique GPU ids, "
            f"got gpu={list(gpu_ids)}"
        )
    return gpu_ids


def _refuse_untyped_budget(stage: StageConfig, config: PipelineConfig) -> None:
    # The plan's sums would miss a budget that only the factory sees.
    for field, args in (
        ("factory_args", stage.factory_args),
        ("runtime_overrides", config.runtime_overrides.get(stage.name, {})),
    ):
        if "total_gpu_memory_fraction" in args:
            raise ValueError(
                f"stage {stage.name!r}: {field} sets total_gpu_memory_fraction; "
                "set runtime.resources.total_gpu_memory_fraction of the stage instead"
            )


def _gpu_placement(node: str, gpu_id: int, placements: list[StagePlacement]) -> GpuPlacement:
    missing = {p.stage_name for p in placements if p.total_gpu_memory_fraction is None}
    return GpuPlacement(
        gpu_id=gpu_id,
        stage_names=tuple(dict.fromkeys(placement.stage_name for placement in placements)),
        total_gpu_memory_fraction=sum(placement.total_gpu_memory_fraction or 0.0 for placement in placements),
        missing_fraction_stage_names=tuple(sorted(missing)),
        node=node or None,
    )


def _apply_policy(path: str, config: PipelineConfig, plan: StagePlacementPlan) -> None:
    policy = import_callable(path, stage=None, field="placement_policy")
    checker = policy() if inspect.isclass(policy) else policy
    if not hasattr(checker, "validate"):
        raise TypeError(f"placement_policy {path!r} has no validate(config, plan)")
    checker.validate(config, plan)
