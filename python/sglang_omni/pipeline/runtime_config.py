"""The plan of a run, and the folder of its sockets. Contract: existing code imports from this path."""

from sglang_omni.pipeline.coordinator.build import build_coordinator
from sglang_omni.pipeline.processes.plan import RunPlan as PipelineRuntimePrep
from sglang_omni.pipeline.processes.plan import (
    allocate_endpoints,
    build_relay_configs,
    prepare_pipeline_runtime,
)
from sglang_omni.pipeline.processes.run_dir import IpcRuntimeDir, create_ipc_runtime_dir

__all__ = [
    "IpcRuntimeDir",
    "PipelineRuntimePrep",
    "allocate_endpoints",
    "build_coordinator",
    "build_relay_configs",
    "create_ipc_runtime_dir",
    "prepare_pipeline_runtime",
]
