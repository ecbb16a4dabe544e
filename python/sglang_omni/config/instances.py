"""Instances of a stage: itself, or one for each of its replicas, called ``talker@r0``, ``talker@r1``."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_omni.config.schema import PipelineConfig, StageConfig

_MARK = "@r"
# A node that is only a name: that of the place of one process, wherever a launcher puts it.
_PLACEHOLDER = "process "


@dataclass(frozen=True, eq=False)
class StageInstance:
    """One instance. ``replica`` is None where the stage is not replicated."""

    stage: StageConfig
    replica: int | None = None

    @property
    def name(self) -> str:
        return instance_name(self.stage.name, self.replica)

    @property
    def gpu_ids(self) -> list[int]:
        """The GPU of each of its ranks; empty on the CPU."""
        gpu_ids, ranks = self.stage.gpu_ids, self.stage.tp_size
        if self.replica is None or len(gpu_ids) <= ranks:
            return gpu_ids
        return gpu_ids[self.replica * ranks : (self.replica + 1) * ranks]

    @property
    def node(self) -> str | None:
        """The host it runs on; None for the coordinator's."""
        node = self.stage.node
        return node[self.replica or 0] if isinstance(node, list) else node

    @property
    def host(self) -> str:
        """``node`` in words."""
        return host_text(self.node)


def stage_instances(config: PipelineConfig) -> list[StageInstance]:
    """Every instance there may come to be, in the order of the stages."""
    return [instance for stage in config.stages for instance in instances_of(stage)]


def instances_of(stage: StageConfig) -> list[StageInstance]:
    """The stage's instances, up to the most that its autoscaling allows."""
    if not stage.is_replicated:
        return [StageInstance(stage)]
    return [StageInstance(stage, replica) for replica in range(stage.max_replicas)]


def placeholder_node(process: str) -> str:
    """The node of a process that may run on any host."""
    return f"{_PLACEHOLDER}{process}"


def is_placeholder(node: str) -> bool:
    """Whether ``node`` is that of one process, on any host, and not one that the config names."""
    return node.startswith(_PLACEHOLDER)


def host_text(node: str | None) -> str:
    """A node in words; None is the coordinator's."""
    if node is None:
        return "the coordinator's host"
    if is_placeholder(node):
        return f"the host of {_PLACEHOLDER}{node.removeprefix(_PLACEHOLDER)!r}"
    return f"node {node!r}"


def instance_name(name: str, replica: int | None) -> str:
    """The name of a stage's or process's replica; ``name`` itself where ``replica`` is None."""
    return name if replica is None else f"{name}{_MARK}{replica}"


def replica_of(instance: str) -> int | None:
    """The replica's number in an instance's name; None where its stage is not replicated."""
    number = instance.partition(_MARK)[2]
    return int(number) if number else None


def stage_of(instance: str) -> str:
    """The stage an instance belongs to."""
    return instance.partition(_MARK)[0]
