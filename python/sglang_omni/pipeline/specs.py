"""The specs that a process gets from its parent: its stages, wired, and the config. Picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_omni.config.plan.instances import instance_name
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.pipeline.transport.keys import RunKeys


@dataclass(frozen=True)
class StageLaunchConfig:
    """All that one stage, or one rank of it, needs to run, resolved. Picklable.

    Attributes:
        stage_name: The stage's name in the config.
        stage: Its config.
        role: A split stage has one leader, which has all the I/O, and followers.
        tp_rank: The rank.
        tp_size: How many ranks the stage has.
        replica: The number of the replica; None if the stage is not replicated.
        gpu_id: The rank's GPU, as this machine's GPUs are counted; None on the CPU.
        all_gpus: True if its process sees every GPU of this machine, and not only that one.
        factory_args: The factory's arguments from the config; the rest depends on its signature.
        coordinator_endpoint: The coordinator's endpoint for results.
        abort_endpoint: The coordinator's endpoint for aborts.
        endpoints: Instance -> where it receives; empty if an EndpointsMessage will tell it.
        host_address: This host's address for other hosts; None if the run has no others.
        keys: The keys of its ``tcp://`` sockets.
        relay_configs: Relay backend of some of its edges -> options of ``create_relay``.
        send_over: Target instance -> relay backend that carries the edge.
        receive_over: Source instance -> relay backend that carries the edge.
        same_process_targets: Target instances in its own process, which get the payload object itself.
        same_gpu_targets: Target instances in other processes on the stage's own GPU.
        tp_address: The socket where the stage's ranks meet; None if it is one process.
        nccl_port: The port where their model's collectives begin; a new one at each start.
    """

    stage_name: str
    stage: StageConfig | None = None
    role: Literal["single", "leader", "follower"] = "single"
    tp_rank: int = 0
    tp_size: int = 1
    replica: int | None = None
    gpu_id: int | None = None
    all_gpus: bool = False
    factory_args: dict[str, Any] = field(default_factory=dict)
    coordinator_endpoint: str = ""
    abort_endpoint: str = ""
    endpoints: dict[str, str] = field(default_factory=dict)
    host_address: str | None = None
    keys: RunKeys | None = None
    relay_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    send_over: dict[str, str] = field(default_factory=dict)
    receive_over: dict[str, str] = field(default_factory=dict)
    same_process_targets: frozenset[str] = frozenset()
    same_gpu_targets: frozenset[str] = frozenset()
    tp_address: str | None = None
    nccl_port: int | None = None

    @property
    def instance(self) -> str:
        """The name of this instance of the stage for the coordinator and other stages."""
        return instance_name(self.stage_name, self.replica)

    @property
    def device_index(self) -> int | None:
        """The GPU as the stage's own process counts, which sees one GPU alone unless ``all_gpus``."""
        return self.gpu_id if self.gpu_id is None or self.all_gpus else 0


@dataclass(frozen=True)
class ProcessSpec:
    """All that a process gets from its parent. Picklable.

    Attributes:
        process_name: Its name in the plan.
        parent_pid: The process it must not outlive.
        log_level: The level of its root logger.
        config: The whole pipeline, from which factories get some arguments.
        stages: Its stages, in config order.
        node: The host it runs on; None for the coordinator's.
        runtime_dir: The folder of the run's sockets on this host.
        coordinator_tcp: ``"completion"`` and ``"abort"`` -> where other hosts reach the coordinator; empty
            if the run has no others.
    """

    process_name: str
    parent_pid: int
    log_level: int
    config: PipelineConfig
    stages: tuple[StageLaunchConfig, ...]
    node: str | None = None
    runtime_dir: str = ""
    coordinator_tcp: Mapping[str, str] = field(default_factory=dict)

    @property
    def instances(self) -> list[str]:
        """The names of the instances that it runs."""
        return [stage.instance for stage in self.stages]

    @property
    def keys(self) -> RunKeys:
        """The run's keys, which every stage has."""
        keys = self.stages[0].keys
        assert keys is not None
        return keys

    @property
    def replica(self) -> int | None:
        """The number of the replica of its stages; None if they are not replicated."""
        return self.stages[0].replica

    @property
    def group(self) -> tuple[str, ...]:
        """The names of its stages, which are the same for every replica."""
        return tuple(stage.stage_name for stage in self.stages)

    @property
    def starts_at_once(self) -> bool:
        """True if it starts with the pipeline, and not only if the load calls for it."""
        stage = self.stages[0].stage
        return self.replica is None or stage is None or self.replica < stage.min_replicas
