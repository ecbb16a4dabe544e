"""The environment of a process: its variables, the GPU it sees, and the port of its ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sglang_omni.gpus import (
    CUSTOM_ALL_REDUCE,
    VISIBLE_DEVICES,
    linked_by_nvlink,
    listed_devices,
    visible_gpus,
)
from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.supervision.ports import bind

# SGLang's: a process that sees one GPU, which is its cuda:0 whatever its rank.
ONE_DEVICE = {"SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": "true"}
# SGLang's: the GPUs of a group need not be equally free, because other stages may use some of them.
UNEQUAL_MEMORY = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}


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
    """The variables that let a stage's process see its own GPU alone; none on the CPU, or with ``all_gpus``.

    Args:
        spec: The stage, or rank of one. Its ``gpu_id`` counts within the GPUs of ``CUDA_VISIBLE_DEVICES``.
        env: The environment to start from; None: this process's.

    Raises:
        ValueError: The GPU is not among those of ``CUDA_VISIBLE_DEVICES``.
    """
    if spec.gpu_id is None or spec.all_gpus:
        return {}
    environment = os.environ if env is None else env
    devices = listed_devices(environment)
    if devices is None:
        device = str(spec.gpu_id)
    elif spec.gpu_id < len(devices):
        device = devices[spec.gpu_id]
    else:
        of_rank = f" of rank {spec.tp_rank}" if spec.tp_size > 1 else ""
        raise ValueError(
            f"stage {spec.stage_name!r}: gpu {spec.gpu_id}{of_rank} is not among "
            f"{VISIBLE_DEVICES}={environment[VISIBLE_DEVICES]!r}"
        )
    variables = {VISIBLE_DEVICES: device, **ONE_DEVICE}
    if spec.tp_size > 1:
        variables |= {name: environment.get(name, value) for name, value in UNEQUAL_MEMORY.items()}
    return variables


def process_environment(spec: ProcessSpec, env: Mapping[str, str]) -> dict[str, str]:
    """``env``, which overrides the pipeline's defaults, with the variables that the stages require."""
    environment = {**spec.config.env_defaults, **env}
    variables: dict[str, str] = {}
    for stage in spec.stages:
        variables |= get_stage_process_env(stage, environment)
    return environment | variables


def all_reduce_environment(
    ranks: Sequence[ProcessSpec], environments: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """The variable that lets the ranks of one stage on GPUs use SGLang's own all-reduce, or not.

    They may if NVML says that NVLink links their GPUs, and ``CUDA_VISIBLE_DEVICES`` has numbers: SGLang reads
    no UUIDs there. Else they use NCCL's.

    Args:
        ranks: The ranks' processes.
        environments: Their environments otherwise, which may say it already.
    """
    gpu_ids = [spec.stages[0].gpu_id for spec in ranks]
    if len(ranks) == 1 or None in gpu_ids or CUSTOM_ALL_REDUCE in environments[0]:
        return {}
    uuids = [gpu.uuid for gpu in visible_gpus() if gpu.index in gpu_ids]
    are_numbers = all(env[VISIBLE_DEVICES].isdigit() for env in environments)
    linked = are_numbers and len(uuids) == len(ranks) and linked_by_nvlink(uuids)
    return {CUSTOM_ALL_REDUCE: "1" if linked else "0"}


def refuse_missing_gpus(specs: Sequence[ProcessSpec], num_gpus: int) -> None:
    """Raise ValueError if one of these processes, which are this host's, is on a GPU that is not there.

    Args:
        specs: The processes.
        num_gpus: How many GPUs there are. 0 refuses none: a stage may be content with a CPU.
    """
    for stage in (stage for spec in specs for stage in spec.stages):
        if num_gpus and stage.gpu_id is not None and stage.gpu_id >= num_gpus:
            there_are = "1 GPU is" if num_gpus == 1 else f"{num_gpus} GPUs are"
            raise ValueError(
                f"stage {stage.instance!r}: gpu {stage.gpu_id} is not there: {there_are} visible, counted "
                "from 0"
            )
