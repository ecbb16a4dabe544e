"""Executors of the earlier form: adapters around functions and engines, run as a stage's scheduler."""

from sglang_omni.executors.engine_executor import EngineExecutor
from sglang_omni.executors.fused_executor import FusedExecutor
from sglang_omni.executors.interface import Executor
from sglang_omni.executors.preprocessing_executor import PreprocessingExecutor
from sglang_omni.executors.scheduler import ExecutorScheduler

__all__ = ["EngineExecutor", "Executor", "ExecutorScheduler", "FusedExecutor", "PreprocessingExecutor"]
