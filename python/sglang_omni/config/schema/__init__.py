"""What a pipeline's config holds, its rules, and how it is loaded and saved."""

from sglang_omni.config.schema.pipeline import EndpointsConfig, PipelineConfig, PlacementConfig
from sglang_omni.config.schema.stage import (
    AutoscalingConfig,
    ExecutorConfig,
    InputHandlerConfig,
    ParallelismConfig,
    RelayConfig,
    SGLangServerArgsConfig,
    StageConfig,
    StageResourceConfig,
    StageRuntimeConfig,
)

__all__ = [
    "AutoscalingConfig",
    "EndpointsConfig",
    "ExecutorConfig",
    "InputHandlerConfig",
    "ParallelismConfig",
    "PipelineConfig",
    "PlacementConfig",
    "RelayConfig",
    "SGLangServerArgsConfig",
    "StageConfig",
    "StageResourceConfig",
    "StageRuntimeConfig",
]
