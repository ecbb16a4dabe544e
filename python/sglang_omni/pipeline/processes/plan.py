"""The plan of a run: the pipeline's plan, the run's endpoints and keys, and the specs of its processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.edges import LOCAL_OBJECT, Edge
from sglang_omni.config.plan.instances import StageInstance, stage_instances
from sglang_omni.config.plan.pipeline import PipelinePlan, plan_pipeline
from sglang_omni.config.plan.placement import StagePlacementPlan
from sglang_omni.config.plan.topology import ProcessTopologyPlan
from sglang_omni.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.run_dir import (
    IpcRuntimeDir,
    create_ipc_runtime_dir,
    endpoint_keys,
    require_short_paths,
)
from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.pipeline.transport.keys import RunKeys


@dataclass(frozen=True)
class RunPlan:
    """All that a run needs, resolved.

    Attributes:
        pipeline: The pipeline's plan: placement, processes and edges.
        endpoints: ``"completion"``, ``"abort"`` and ``"stage_{instance}"`` -> endpoint of the socket; empty
            for stages on other hosts, which tell theirs when they are up.
        runtime_dir: The folder of the run's sockets, which the caller that had the plan made must close.
        keys: The keys of the run's ``tcp://`` sockets.
        host_address: This host's address for other hosts; None if the run has no others.
    """

    pipeline: PipelinePlan
    endpoints: dict[str, str]
    runtime_dir: IpcRuntimeDir
    keys: RunKeys
    host_address: str | None = None

    @property
    def config(self) -> PipelineConfig:
        """The pipeline's config."""
        return self.pipeline.config

    @property
    def placement_plan(self) -> StagePlacementPlan:
        """The GPUs of each stage."""
        return self.pipeline.placement

    @property
    def process_plan(self) -> ProcessTopologyPlan:
        """The process of each stage."""
        return self.pipeline.processes

    @property
    def stages_cfg(self) -> list[StageConfig]:
        """The stages, in config order."""
        return list(self.config.stages)

    @property
    def name_map(self) -> dict[str, str]:
        """Stage of the config -> the stage that runs it. Fusing is colocation, so each runs itself."""
        return {stage.name: stage.name for stage in self.config.stages}

    @property
    def entry_stage(self) -> str:
        """The stage where requests enter."""
        return self.config.resolved_entry_stage

    def process_specs(self, coordinator_tcp: Mapping[str, str] | None = None) -> list[ProcessSpec]:
        """One spec for each process, also for the replicas that do not start with the pipeline.

        The ranks of a stage follow one another, rank 0 first. Stages are wired for this host; another host
        makes a plan of its own for its processes.

        Args:
            coordinator_tcp: ``"completion"`` and ``"abort"`` -> where other hosts reach the coordinator; None
                if the run has no others.
        """
        instances = {instance.name: instance for instance in stage_instances(self.config)}
        wire = partial(
            plan_stage_launch,
            config=self.config,
            endpoints=self.endpoints,
            edges=self.pipeline.edges,
            host_address=self.host_address,
            keys=self.keys,
        )
        seeing_all = self.process_plan.all_gpus
        launches = {
            group.name: tuple(
                wire(instances[name], all_gpus=group.name in seeing_all) for name in group.stage_names
            )
            for group in self.process_plan.groups
        }
        for name, processes in self.process_plan.tp_stage_to_processes.items():
            address = str(self.runtime_dir.path / f"ranks_{name}.sock")
            for rank, process in enumerate(processes):
                launches[process] = (wire(instances[name], tp_rank=rank, tp_address=address),)
        return [
            ProcessSpec(
                process_name=process,
                parent_pid=os.getpid(),
                log_level=logging.getLogger().getEffectiveLevel(),
                config=self.config,
                stages=of_process,
                node=self.process_plan.node_of[process],
                runtime_dir=str(self.runtime_dir.path),
                coordinator_tcp=dict(coordinator_tcp or {}),
            )
            for process, of_process in launches.items()
        ]


def prepare_pipeline_runtime(
    config: PipelineConfig, *, ipc_runtime_dir: IpcRuntimeDir | None = None
) -> RunPlan:
    """Plan a run of a config on this host alone. Contract.

    Args:
        config: The pipeline.
        ipc_runtime_dir: An existing folder for the sockets; None: a new one is created.

    Raises:
        ValueError: The config breaks a rule of its plans, a relay backend that stays within a host was chosen
            for an edge between hosts, or a socket's path would be too long.
    """
    return plan_run(plan_pipeline(config), ipc_runtime_dir=ipc_runtime_dir)


def plan_run(
    pipeline: PipelinePlan,
    *,
    ipc_runtime_dir: IpcRuntimeDir | None = None,
    node: str | None = None,
    host_address: str | None = None,
    keys: RunKeys | None = None,
    coordinator_endpoints: Mapping[str, str] | None = None,
) -> RunPlan:
    """Plan a run. Imports no factory and starts nothing.

    Args:
        pipeline: The pipeline's plan.
        ipc_runtime_dir: An existing folder for the sockets; None: a new one is created.
        node: The host to plan for: it has sockets of its own stages only. None: the coordinator's.
        host_address: This host's address for other hosts; None if the run has no others.
        keys: The run's keys, on a host that joins a run; None: new ones.
        coordinator_endpoints: ``"completion"`` and ``"abort"``, on a host that joins a run.

    Raises:
        ValueError: A socket's path would be too long.
    """
    config = pipeline.config
    runtime_dir = ipc_runtime_dir or create_ipc_runtime_dir(config)
    try:
        if config.endpoints.scheme == "tcp":
            endpoints = _tcp_endpoints(config.stages, config.endpoints, runtime_dir)
        else:
            endpoints = allocate_endpoints(stages=config.stages, ipc_base_dir=runtime_dir.path)
        elsewhere = [f"stage_{it.name}" for it in stage_instances(config) if it.node != node]
        endpoints |= dict.fromkeys(elsewhere, "") | dict(coordinator_endpoints or {})
    except BaseException:
        if ipc_runtime_dir is None:
            runtime_dir.close()
        raise
    return RunPlan(
        pipeline=pipeline,
        endpoints=endpoints,
        runtime_dir=runtime_dir,
        keys=keys or RunKeys.generate(),
        host_address=host_address,
    )


def allocate_endpoints(*, stages: Sequence[StageConfig], ipc_base_dir: Path) -> dict[str, str]:
    """``ipc://`` endpoints in a run's folder: ``"completion"``, ``"abort"`` and ``"stage_{instance}"``.

    Raises:
        ValueError: A socket's path would be too long.
    """
    require_short_paths(Path(ipc_base_dir), stages)
    return {key: f"ipc://{ipc_base_dir}/{key}.sock" for key in endpoint_keys(stages)}


def _tcp_endpoints(
    stages: Sequence[StageConfig], endpoints: EndpointsConfig, runtime_dir: IpcRuntimeDir
) -> dict[str, str]:
    keys = endpoint_keys(stages)
    if endpoints.base_port is not None:
        ports = [endpoints.base_port + index for index in range(len(keys))]
    else:
        # Processes listen on them once they have loaded their models.
        ports = runtime_dir.hold_ports(endpoints.host, len(keys))
    return {key: f"tcp://{endpoints.host}:{port}" for key, port in zip(keys, ports, strict=True)}


def plan_stage_launch(
    instance: StageInstance,
    config: PipelineConfig,
    endpoints: Mapping[str, str],
    edges: Sequence[Edge],
    *,
    tp_rank: int = 0,
    tp_address: str | None = None,
    all_gpus: bool = False,
    host_address: str | None = None,
    keys: RunKeys | None = None,
) -> StageLaunchConfig:
    """Wire one stage, or one rank of it: its neighbours, what carries its edges, and where all receive.

    Args:
        instance: The stage, or replica of one.
        config: The pipeline.
        endpoints: ``"completion"``, ``"abort"`` and ``"stage_{instance}"`` -> endpoint of the socket.
        edges: All edges of the pipeline.
        tp_rank: The rank; rank 0 has all the I/O.
        tp_address: The socket where the ranks meet; None if the stage is one process.
        all_gpus: True if its process sees every GPU of this machine.
        host_address: This host's address for other hosts; None if the run has no others.
        keys: The keys of the run's ``tcp://`` sockets.
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
        all_gpus=all_gpus,
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
        gpu_id: The stage's GPU, as its process counts; None on the CPU.
        host_address: This host's address for other hosts; None if the run has no others.
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
    # Shared memory refuses a GPU. A stage that has no other relay must hear of that.
    is_given = relay.explicit_device is not None and len(backends) == 1
    return {
        backend: {**options, "device": device if backend != "shm" or is_given else "cpu"}
        for backend in backends
    }
