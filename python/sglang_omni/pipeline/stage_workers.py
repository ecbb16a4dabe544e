"""Processes of stages. Contract: existing code imports from this path."""

from sglang_omni.pipeline.processes.environment import get_stage_process_env
from sglang_omni.pipeline.processes.supervisor import SupervisedProcess as StageGroup
from sglang_omni.pipeline.specs import ProcessSpec as WorkerSpec
from sglang_omni.pipeline.specs import StageLaunchConfig

__all__ = ["StageGroup", "StageLaunchConfig", "WorkerSpec", "get_stage_process_env"]
