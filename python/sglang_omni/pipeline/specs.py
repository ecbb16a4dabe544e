"""What a process is told when it starts: its stages, wired, and the config they come from. Picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_omni.config import (
    PipelineConfig,
    StageConfig,
    instance_name,
)
from sglang_omni.pipeline.transport.keys import RunKeys


@dataclass(frozen=True)
class StageLaunchConfig:
    """What one stage, or one rank of it, needs beside its config to run: picklable and resolved.

    Attributes:
        replica: Which replica of the stage it is; None where the stage is not replicated.
        gpu_id: The rank's GPU, None on the CPU.
        factory_args: What the config gives the factory; the rest depends on its signature.
        endpoints: Stage, or replica of one -> where it receives; empty where an EndpointsMessage tells it.
        host_address: Where other hosts are to reach its sockets and relays; None where none does.
        keys: What its ``tcp://`` sockets talk with.
        relay_configs: Relay backend that its edges use -> the options of ``create_relay``.
        send_over: Target, or replica of one -> the backend that carries what is sent there.
        receive_over: Source, or replica of one -> the backend that carries what comes from there.
        same_process_targets: Targets, or replicas of them, in the stage's own process; they get the payload
            object itself.
        same_gpu_targets: Stream targets, or replicas of them, in other processes on the stage's own GPU.
        tp_address: The socket where the stage's ranks meet; None where it is one process.
        nccl_port: The port where their model's collectives begin; another one each time they are started.
    """

    stage_name: str
    stage: StageConfig | None = None
    role: Literal["single", "leader", "follower"] = "single"
    tp_rank: int = 0
    tp_size: int = 1
    replica: int | None = None
    gpu_id: int | None = None
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
        """The name of this instance of the stage: by it the coordinator and other stages know it."""
        return instance_name(self.stage_name, self.replica)

    @property
    def device_index(self) -> int | None:
        """The GPU as the rank's own process counts: of a group, each process sees one GPU alone."""
        return 0 if self.tp_size > 1 and self.gpu_id is not None else self.gpu_id


@dataclass(frozen=True)
class ProcessSpec:
    """All a worker process is told. Picklable.

    Attributes:
        parent_pid: The process it must not outlive.
        log_level: The level of its root logger.
        config: The whole pipeline, for what factories are given of it.
        stages: Its stages, in config order.
        node: The host it runs on; None for the coordinator's.
        coordinator_tcp: ``"completion"`` and ``"abort"`` -> where other hosts reach the coordinator; empty
            where all is on one host.
    """

    process_name: str
    parent_pid: int
    log_level: int
    config: PipelineConfig
    stages: tuple[StageLaunchConfig, ...]
    node: str | None = None
    coordinator_tcp: Mapping[str, str] = field(default_factory=dict)

    @property
    def instances(self) -> list[str]:
        """The instances of stages that it runs."""
        return [stage.instance for stage in self.stages]

    @property
    def keys(self) -> RunKeys:
        """The run's, which every stage was given."""
        keys = self.stages[0].keys
        assert keys is not None
        return keys

    @property
    def replica(self) -> int | None:
        """Which replica of its stages it is; None where they are not replicated."""
        return self.stages[0].replica

    @property
    def group(self) -> tuple[str, ...]:
        """Its stages by their own names: the same for every replica."""
        return tuple(stage.stage_name for stage in self.stages)

    @property
    def starts_at_once(self) -> bool:
        """Whether it starts with the pipeline, and not only when the load calls for it."""
        stage = self.stages[0].stage
        return self.replica is None or stage is None or self.replica < stage.min_replicas
