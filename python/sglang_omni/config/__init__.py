"""Pipeline configs: their fields, loading and saving, checks, and the plans made from them.

``compile_pipeline`` and ``PipelineRunner`` live in the pipeline package and are loaded when asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sglang_omni.config.draw.report import describe_config, resolve_config, validate_config
from sglang_omni.config.factories.factory_args import apply_env_defaults, resolve_stage_factory_args
from sglang_omni.config.imports import import_callable, import_string
from sglang_omni.config.plan.edges import LOCAL_OBJECT, Edge, check_inputs, check_terminals, plan_edges
from sglang_omni.config.plan.instances import StageInstance, instance_name, stage_instances, stage_of
from sglang_omni.config.plan.pipeline import PipelinePlan, plan_pipeline
from sglang_omni.config.plan.placement import (
    GpuPlacement,
    PlacementPolicy,
    StagePlacement,
    StagePlacementPlan,
    build_stage_placement_plan,
    resolve_stage_gpu_ids,
)
from sglang_omni.config.plan.topology import ProcessGroup, ProcessTopologyPlan, build_process_topology_plan
from sglang_omni.config.schema import (
    AutoscalingConfig,
    EndpointsConfig,
    ExecutorConfig,
    InputHandlerConfig,
    ParallelismConfig,
    PipelineConfig,
    PlacementConfig,
    RelayConfig,
    SGLangServerArgsConfig,
    StageConfig,
    StageResourceConfig,
    StageRuntimeConfig,
)
from sglang_omni.config.schema.load import ConfigError, load_config, save_config
from sglang_omni.config.schema.pipeline import validate_pipeline
from sglang_omni.config.schema.serves import ServesConfig
from sglang_omni.config.schema.watchdog import WatchdogConfig

if TYPE_CHECKING:
    from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline

__all__ = [
    "LOCAL_OBJECT",
    "AutoscalingConfig",
    "ConfigError",
    "Edge",
    "EndpointsConfig",
    "ExecutorConfig",
    "GpuPlacement",
    "InputHandlerConfig",
    "ParallelismConfig",
    "PipelineConfig",
    "PipelinePlan",
    "PipelineRunner",
    "PlacementConfig",
    "PlacementPolicy",
    "ProcessGroup",
    "ProcessTopologyPlan",
    "RelayConfig",
    "SGLangServerArgsConfig",
    "ServesConfig",
    "StageConfig",
    "StageInstance",
    "StagePlacement",
    "StagePlacementPlan",
    "StageResourceConfig",
    "StageRuntimeConfig",
    "WatchdogConfig",
    "apply_env_defaults",
    "build_process_topology_plan",
    "build_stage_placement_plan",
    "check_inputs",
    "check_terminals",
    "compile_pipeline",
    "describe_config",
    "import_callable",
    "import_string",
    "instance_name",
    "load_config",
    "plan_edges",
    "plan_pipeline",
    "resolve_config",
    "resolve_stage_factory_args",
    "resolve_stage_gpu_ids",
    "save_config",
    "stage_instances",
    "stage_of",
    "validate_config",
    "validate_pipeline",
]


def __getattr__(name: str) -> Any:
    if name in ("compile_pipeline", "PipelineRunner"):
        # By name: config stands below pipeline and must not import it on its own account.
        return getattr(importlib.import_module("sglang_omni.pipeline.compile"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
