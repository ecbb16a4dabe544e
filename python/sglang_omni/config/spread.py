"""Pipelines whose processes a launcher such as Ray puts where there is room."""

from __future__ import annotations

from sglang_omni.config.instances import anywhere, instances_of
from sglang_omni.config.placement import build_stage_placement_plan
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.config.topology import build_process_topology_plan


def spread_out(config: PipelineConfig) -> PipelineConfig:
    """The config with a node of its own for each process that names none: it may be put on any."""
    plan = build_process_topology_plan(config, build_stage_placement_plan(config))
    spread = config.model_copy(deep=True)
    for stage in spread.stages:
        nodes = [
            it.node or anywhere(plan.stage_to_process.get(it.name, it.name)) for it in instances_of(stage)
        ]
        stage.node = [*nodes] if stage.is_replicated else nodes[0]
    return spread
