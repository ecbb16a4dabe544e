"""``MultiProcessPipelineRunner``. Contract: existing code imports from this path."""

from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

__all__ = ["MultiProcessPipelineRunner"]
