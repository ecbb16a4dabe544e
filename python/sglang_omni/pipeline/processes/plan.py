"""Plans every process of a run: which stages it has, what carries their edges, and where they receive."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sglang_omni.config import (
    LOCAL_OBJECT,
    Edge,
    PipelineConfig,
    RelayConfig,
    StageConfig,
    StageInstance,
    plan_edges,
    stage_instances,
)
from sglang_omni.config.factory_args import (
    merge_factory_args,
)
from sglang_omni.pipeline.processes.prepare import PipelineRuntimePrep
from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.pipeline.transport.keys import RunKeys


def plan_processes(
    config: PipelineConfig,
    prep: PipelineRuntimePrep,
    *,
    coordinator_tcp: Mapping[str, str] | None = None,
) -> list[ProcessSpec]:
    """One spec for each process of the plan, the replicas that are not to start yet included.

    The ranks of a stage follow one another, rank 0 first. Stages are wired for the host of ``prep``: the host
    that a process with another ``node`` runs on plans that one itself.

    Args:
        config: The pipeline.
        prep: What was made of it.
        coordinator_tcp: As in ProcessSpec.

    Raises:
        ValueError: A relay backend that stays within a host was chosen for an edge between hosts.
    """
    instances = {instance.name: instance for instance in stage_instances(config)}
    wire = partial(
        plan_stage_launch,
        config=config,
        endpoints=prep.endpoints,
        edges=plan_edges(config, prep.process_plan.stage_to_process),
        host_address=prep.host_address,
        keys=prep.keys,
    )
    launches = {
        group.name: tuple(wire(instances[name]) for name in group.stage_names)
        for group in prep.process_plan.groups
    }
    for name, processes in prep.process_plan.tp_stage_to_processes.items():
        address = str(prep.runtime_dir.path / f"ranks_{name}.sock")
        for rank, process in enumerate(processes):
            launches[process] = (wire(instances[name], tp_rank=rank, tp_address=address),)
    return [
        ProcessSpec(
            process_name=process,
            parent_pid=os.getpid(),
            log_level=logging.getLogger().getEffectiveLevel(),
            config=config,
            stages=of_process,
            node=prep.process_plan.node_of[process],
            coordinator_tcp=dict(coordinator_tcp or {}),
        )
        for process, of_process in launches.items()
    ]


def plan_stage_launch(
    instance: StageInstance,
    config: PipelineConfig,
    endpoints: Mapping[str, str],
    edges: Sequence[Edge],
    *,
    tp_rank: int = 0,
    tp_address: str | None = None,
    host_address: str | None = None,
    keys: RunKeys | None = None,
) -> StageLaunchConfig:
    """Wire one stage, or one rank of it: who is in its process, what carries its edges, where all receive.

    Args:
        endpoints: ``"completion"``, ``"abort"`` and ``"stage_{instance}"`` -> endpoint of the socket.
        edges: All edges of the pipeline; see ``plan_edges``.
        The others are as in StageLaunchConfig.
    """
    stage = instance.stage
    gpu_id = instance.gpu_ids[tp_rank] if instance.gpu_ids else None
    # Rank 0 owns all I/O.
    outgoing = [edge for edge in edges if edge.source == instance.name] if tp_rank == 0 else []
    incoming = [edge for edge in edges if edge.target == instance.name] if tp_rank == 0 else []
    is_split = stage.tp_size > 1
    launch = StageLaunchConfig(
        stage_name=stage.name,
        stage=stage,
        role="single" if not is_split else "follower" if tp_rank > 0 else "leader",
        tp_rank=tp_rank,
        tp_size=stage.tp_size,
        replica=instance.replica,
        gpu_id=gpu_id,
        tp_address=tp_address,
        factory_args=merge_factory_args(stage, config),
        coordinator_endpoint=endpoints["completion"],
        abort_endpoint=endpoints["abort"],
        endpoints={it.name: endpoints[f"stage_{it.name}"] for it in stage_instances(config)},
        host_address=host_address,
        keys=keys,
        send_over={edge.target: edge.relay for edge in outgoing if edge.relay is not None},
        receive_over={edge.source: edge.relay for edge in incoming if edge.relay is not None},
        same_process_targets=frozenset(edge.target for edge in outgoing if edge.transport == LOCAL_OBJECT),
        same_gpu_targets=frozenset(edge.target for edge in outgoing if edge.cuda_ipc),
    )
    backends = dict.fromkeys([*launch.send_over.values(), *launch.receive_over.values()])
    relays = build_relay_configs(config, stage, backends, launch.device_index, host_address)
    return replace(launch, relay_configs=relays)


def build_relay_configs(
    config: PipelineConfig,
    stage: StageConfig,
    backends: Collection[str],
    gpu_id: int | None,
    host_address: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Each backend that a stage's edges use -> the options of ``create_relay``.

    Every relay has slots and credits of its own, and takes those of the stage's ``backend_options`` that its
    constructor knows. Unless the stage sets a device, tensors of a stage on a GPU travel from that GPU,
    except through shared memory, which is the CPU's. Ranks of a collective relay are the stages' positions.

    Args:
        config: The pipeline.
        stage: The stage.
        backends: The backends.
        gpu_id: The stage's GPU, None on the CPU.
        host_address: Where peers of other hosts reach this one; None where there are none.
    """
    relay = stage.relay or RelayConfig()
    device = relay.explicit_device or ("cpu" if gpu_id is None else f"cuda:{gpu_id}")
    given = {} if host_address is None else {"host": host_address}
    options = {
        **given,
        **relay.backend_options,
        "slot_size_mb": relay.slot_size_mb,
        "credits": relay.credits,
        "rank": [s.name for s in config.stages].index(stage.name) if relay.rank is None else relay.rank,
        "world_size": len(config.stages) if relay.world_size is None else relay.world_size,
    }
    # Told a GPU, shared memory refuses; a stage that has nothing else is to hear of that.
    told = relay.explicit_device is not None and len(backends) == 1
    return {
        backend: {**options, "device": device if backend != "shm" or told else "cpu"} for backend in backends
    }
