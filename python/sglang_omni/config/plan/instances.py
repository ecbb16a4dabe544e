"""Instances of stages and their names: a stage itself, or each of its replicas (``talker@r0``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sglang_omni.config.schema import PipelineConfig, StageConfig

_MARK = "@r"
# Begins the name of a node that stands for the host of one process, which a launcher will pick.
_PLACEHOLDER = "process "


@dataclass(frozen=True, eq=False)
class StageInstance:
    """One instance of a stage. ``replica`` is None if the stage is not replicated."""

    stage: StageConfig
    replica: int | None = None

    @property
    def name(self) -> str:
        return instance_name(self.stage.name, self.replica)

    @property
    def gpu_ids(self) -> list[int]:
        """The GPU of each rank; empty on the CPU."""
        gpu_ids, ranks = self.stage.gpu_ids, self.stage.tp_size
        if self.replica is None or len(gpu_ids) <= ranks:
            return gpu_ids
        return gpu_ids[self.replica * ranks : (self.replica + 1) * ranks]

    @property
    def node(self) -> str | None:
        """The host of the instance; None for the coordinator's."""
        node = self.stage.node
        return node[self.replica or 0] if isinstance(node, list) else node

    @property
    def host(self) -> str:
        """``node`` in words."""
        return host_text(self.node)


def stage_instances(config: PipelineConfig) -> list[StageInstance]:
    """Every instance, including those that autoscaling may add, in the order of the stages."""
    return [instance for stage in config.stages for instance in instances_of(stage)]


def instances_of(stage: StageConfig) -> list[StageInstance]:
    """Every instance of a stage, including those that autoscaling may add."""
    if not stage.is_replicated:
        return [StageInstance(stage)]
    return [StageInstance(stage, replica) for replica in range(stage.max_replicas)]


def placeholder_node(process: str) -> str:
    """The node of a process whose host a launcher picks."""
    return f"{_PLACEHOLDER}{process}"


def is_placeholder(node: str) -> bool:
    """True if ``node`` comes from ``placeholder_node`` and not from the config."""
    return node.startswith(_PLACEHOLDER)


def host_text(node: str | None) -> str:
    """A node in words; None is the coordinator's host."""
    if node is None:
        return "the coordinator's host"
    if is_placeholder(node):
        return f"the host of {_PLACEHOLDER}{node.removeprefix(_PLACEHOLDER)!r}"
    return f"node {node!r}"


def instance_name(name: str, replica: int | None) -> str:
    """The name of a replica of the stage or process ``name``; ``name`` itself if ``replica`` is None."""
    return name if replica is None else f"{name}{_MARK}{replica}"


def replica_of(instance: str) -> int | None:
    """The replica's number in an instance's name; None if there is none."""
    number = instance.partition(_MARK)[2]
    return int(number) if number else None


@lru_cache  # A pipeline has few, and each message names some.
def stage_of(instance: str) -> str:
    """The stage's name in an instance's name."""
    return instance.partition(_MARK)[0]
