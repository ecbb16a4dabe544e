"""Resolves what a run needs before its processes start: plans, endpoints, keys, the sockets' folder."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_omni.config import (
    EndpointsConfig,
    PipelineConfig,
    StageConfig,
    build_process_topology_plan,
    build_stage_placement_plan,
    stage_instances,
)
from sglang_omni.config.placement import StagePlacementPlan
from sglang_omni.config.topology import ProcessTopologyPlan
from sglang_omni.pipeline.processes.run_dir import (
    IpcRuntimeDir,
    create_ipc_runtime_dir,
    endpoint_keys,
    require_short_paths,
)
from sglang_omni.pipeline.transport.keys import RunKeys


def allocate_endpoints(*, stages: Sequence[StageConfig], ipc_base_dir: Path) -> dict[str, str]:
    """``ipc://`` endpoints in a run's folder: ``"completion"``, ``"abort"`` and ``"stage_{instance}"``.

    Raises:
        ValueError: A socket's path would be too long.
    """
    require_short_paths(Path(ipc_base_dir), stages)
    return {key: f"ipc://{ipc_base_dir}/{key}.sock" for key in endpoint_keys(stages)}


def _allocate_tcp_endpoints(stages: Sequence[StageConfig], endpoints: EndpointsConfig) -> dict[str, str]:
    keys = endpoint_keys(stages)
    if endpoints.base_port is not None:
        ports = [endpoints.base_port + index for index in range(len(keys))]
    else:
        # All are held until all are known, so that none is given out twice.
        held = [socket.create_server((endpoints.host, 0)) for _ in keys]
        ports = [server.getsockname()[1] for server in held]
        for server in held:
            server.close()
    return {key: f"tcp://{endpoints.host}:{port}" for key, port in zip(keys, ports, strict=True)}


@dataclass(frozen=True)
class PipelineRuntimePrep:
    """What a run needs, resolved.

    Attributes:
        stages_cfg: The stages, in config order.
        name_map: Stage of the config -> the stage that runs it. Fusing is colocation, so each runs itself.
        entry_stage: Where requests enter.
        endpoints: ``"completion"``, ``"abort"`` and ``"stage_{instance}"`` -> endpoint of the socket; empty
            for stages on other hosts, which tell theirs when they are up.
        placement_plan: Which stage is on which GPUs.
        process_plan: Which stage is in which process.
        runtime_dir: The folder of the run's sockets; whoever asked for the preparation closes it.
        keys: What the run's ``tcp://`` sockets talk with.
        host_address: Where other hosts reach this one; None where there are none.
    """

    stages_cfg: list[StageConfig]
    name_map: dict[str, str]
    entry_stage: str
    endpoints: dict[str, str]
    placement_plan: StagePlacementPlan
    process_plan: ProcessTopologyPlan
    runtime_dir: IpcRuntimeDir
    keys: RunKeys
    host_address: str | None = None


def prepare_pipeline_runtime(
    config: PipelineConfig,
    *,
    ipc_runtime_dir: IpcRuntimeDir | None = None,
    node: str | None = None,
    host_address: str | None = None,
    keys: RunKeys | None = None,
    coordinator_endpoints: Mapping[str, str] | None = None,
) -> PipelineRuntimePrep:
    """Resolve plans and endpoints of a run. Imports no factory and starts nothing.

    Args:
        config: The pipeline.
        ipc_runtime_dir: An existing folder for the sockets; a new one is created when None.
        node: The host to prepare for: it has sockets of its own stages only. None: the coordinator's.
        host_address: The address at which the other hosts reach this one; None where all is on one host.
        keys: The run's keys, on a host that joins a run; new ones when None.
        coordinator_endpoints: ``"completion"`` and ``"abort"``, on a host that joins a run.

    Raises:
        ValueError: The plans break one of the config's rules, or a socket's path would be too long.
    """
    # The plans first: a config that cannot run leaves nothing on disk.
    placement_plan = build_stage_placement_plan(config)
    process_plan = build_process_topology_plan(config, placement_plan)
    stages = list(config.stages)
    runtime_dir = ipc_runtime_dir or create_ipc_runtime_dir(config)
    try:
        if config.endpoints.scheme == "tcp":
            endpoints = _allocate_tcp_endpoints(stages, config.endpoints)
        else:
            endpoints = allocate_endpoints(stages=stages, ipc_base_dir=runtime_dir.path)
        elsewhere = [f"stage_{it.name}" for it in stage_instances(config) if it.node != node]
        endpoints |= dict.fromkeys(elsewhere, "") | dict(coordinator_endpoints or {})
    except BaseException:
        if ipc_runtime_dir is None:
            runtime_dir.close()
        raise
    return PipelineRuntimePrep(
        stages_cfg=stages,
        name_map={stage.name: stage.name for stage in stages},
        entry_stage=config.resolved_entry_stage,
        endpoints=endpoints,
        placement_plan=placement_plan,
        process_plan=process_plan,
        runtime_dir=runtime_dir,
        keys=keys or RunKeys.generate(),
        host_address=host_address,
    )
