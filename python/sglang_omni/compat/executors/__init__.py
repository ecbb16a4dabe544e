"""Executors, which stages of the legacy form have: adapters that run functions and engines as schedulers."""

from sglang_omni.compat.executors.engine_executor import EngineExecutor
from sglang_omni.compat.executors.executor import Executor, ExecutorScheduler
from sglang_omni.compat.executors.fused_executor import FusedExecutor, create_fused_executor
from sglang_omni.compat.executors.preprocessing_executor import PreprocessingExecutor

__all__ = [
    "EngineExecutor",
    "Executor",
    "ExecutorScheduler",
    "FusedExecutor",
    "PreprocessingExecutor",
    "create_fused_executor",
]
