"""The environment of a process: its variables, the GPU it sees, and the port of its ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.supervision.ports import bind


def with_port(ranks: Sequence[ProcessSpec]) -> tuple[list[ProcessSpec], socket.socket]:
    """The ranks of one stage with a port of their own.

    Returns:
        The ranks, and the socket that holds the port for them until it is closed.
    """
    held = bind("127.0.0.1")
    port = held.getsockname()[1]
    return [
        replace(spec, stages=tuple(replace(launch, nccl_port=port) for launch in spec.stages))
        for spec in ranks
    ], held


def get_stage_process_env(spec: StageLaunchConfig, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that let a TP rank's process see its own GPU alone; none for other stages, or on the CPU.

    Args:
        spec: The rank. Its ``gpu_id`` counts within the GPUs of ``CUDA_VISIBLE_DEVICES``.
        env: The environment to start from; None: this process's.

    Raises:
        ValueError: The rank's GPU is not visible.
    """
    if spec.tp_size <= 1 or spec.gpu_id is None:
        return {}
    device = str(spec.gpu_id)
    visible = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")
    if visible:
        devices = [item.strip() for item in visible.split(",")]
        if spec.gpu_id >= len(devices):
            raise ValueError(
                f"stage {spec.stage_name!r}: gpu {spec.gpu_id} of rank {spec.tp_rank} is not among "
                f"CUDA_VISIBLE_DEVICES={visible!r}"
            )
        device = devices[spec.gpu_id]
    return {"CUDA_VISIBLE_DEVICES": device, "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": "true"}


def process_environment(spec: ProcessSpec, env: Mapping[str, str]) -> dict[str, str]:
    """``env``, which overrides the pipeline's defaults, with the variables that the stages' ranks require."""
    environment = {**spec.config.env_defaults, **env}
    for stage in spec.stages:
        environment |= get_stage_process_env(stage, environment)
    return environment
