"""The plan of a run, made once: the GPUs and processes of stages, and what carries each edge."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_omni.config.plan.edges import Edge, plan_edges
from sglang_omni.config.plan.instances import instances_of, placeholder_node
from sglang_omni.config.plan.placement import StagePlacementPlan, build_stage_placement_plan
from sglang_omni.config.plan.topology import ProcessTopologyPlan, build_process_topology_plan
from sglang_omni.config.schema import PipelineConfig


@dataclass(frozen=True)
class PipelinePlan:
    """What ``validate_config`` has checked and a run needs.

    Attributes:
        config: The config that the plan was made from.
        placement: Stages on GPUs.
        processes: Instances of stages in processes.
        edges: Every edge that there may come to be, in the order of the stages.
    """

    config: PipelineConfig
    placement: StagePlacementPlan
    processes: ProcessTopologyPlan
    edges: list[Edge]


def plan_pipeline(config: PipelineConfig) -> PipelinePlan:
    """Plan a pipeline, of which only the rules of its graph have been checked.

    Raises:
        ValueError: The stages do not fit their GPUs or processes, or the relay of an edge between hosts stays
            within one.
    """
    placement = build_stage_placement_plan(config)
    processes = build_process_topology_plan(config, placement)
    return PipelinePlan(config, placement, processes, plan_edges(config, processes.stage_to_process))


def with_placeholder_nodes(plan: PipelinePlan) -> PipelinePlan:
    """The plan for a launcher such as Ray, which picks hosts: each process without a node has a placeholder.

    Raises:
        ValueError: As ``plan_pipeline``.
    """
    config = plan.config.model_copy(deep=True)
    process_of = plan.processes.stage_to_process
    for stage in config.stages:
        nodes = [it.node or placeholder_node(process_of.get(it.name, it.name)) for it in instances_of(stage)]
        stage.node = [*nodes] if stage.is_replicated else nodes[0]
    return plan_pipeline(config)
