"""The edges between instances of stages: what carries each of them, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sglang_omni.config.plan.instances import StageInstance, instances_of, stage_instances, stage_of
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.relay_backends import network_backends, refuse_unread_settings, relay_backend

LOCAL_OBJECT = "local_object"

Kind = Literal["payload", "stream"]


@dataclass(frozen=True)
class Edge:
    """One edge between two instances of stages.

    Attributes:
        source: The instance that sends.
        target: The instance that receives.
        kinds: Payloads, stream chunks or both.
        transport: ``LOCAL_OBJECT`` if the object itself is handed over, else the name of a relay backend.
        reason: Why this transport, in words.
        relay: The backend that both ends open for the edge; None if none is needed. An edge within a process
            needs one for payloads that a fan-out gives to several stages as one object.
        cuda_ipc: True if GPU tensors stay on the GPU that both ends share, and only a handle to them is sent.
    """

    source: str
    target: str
    kinds: tuple[Kind, ...]
    transport: str
    reason: str
    relay: str | None
    cuda_ipc: bool = False

    @property
    def label(self) -> str:
        """The transport in short: ``local_object``, ``nixl``, ``shm + cuda_ipc``."""
        return f"{self.transport} + cuda_ipc" if self.cuda_ipc else self.transport


def plan_edges(config: PipelineConfig, process_of: Mapping[str, str]) -> list[Edge]:
    """Every edge that there may come to be, in the order of the stages.

    Both ends of an edge take its relay from here. With ``get_next`` (legacy form) any stage may be a target.

    Args:
        config: The pipeline.
        process_of: Instance -> its process. TP stages are absent: no stage shares their processes.

    Raises:
        ValueError: A backend that stays within a host was chosen for an edge between hosts.
    """
    return [
        _plan_edge(source, target, config, process_of)
        for source in stage_instances(config)
        for target_stage in _targets(source.stage, config)
        for target in _reachable(source, target_stage, process_of)
    ]


def merge_replicas(edges: list[Edge]) -> list[Edge]:
    """The edges between stages. Edges between replicas are listed one by one only if they differ."""
    alike: dict[tuple[str, str], list[Edge]] = {}
    for edge in edges:
        alike.setdefault((stage_of(edge.source), stage_of(edge.target)), []).append(edge)
    merged: list[Edge] = []
    for (source, target), group in alike.items():
        kinds = {replace(edge, source=source, target=target) for edge in group}
        merged += kinds if len(kinds) == 1 else group
    return merged


def check_edges(config: PipelineConfig, edges: Iterable[Edge]) -> None:
    """Raise ValueError if a setting of relays does not fit the planned edges."""
    for edge in edges:
        source, target = stage_of(edge.source), stage_of(edge.target)
        if edge.transport == LOCAL_OBJECT and target in config.stage(source).edge_relays:
            raise ValueError(
                f"stage {source!r}: edge_relays names {target!r}, which runs in the same process and is "
                "handed the object itself; leave it out, or give the two stages different values of 'process'"
            )
    for stage in config.stages:
        if stage.relay is None:
            continue
        ends = ((edge.relay, stage_of(edge.source), stage_of(edge.target)) for edge in edges)
        backends = {relay for relay, *both in ends if relay is not None and stage.name in both}
        if backends:  # Else the stage has no relay: all its neighbours are in its process.
            refuse_unread_settings(f"stage {stage.name!r}: relay", stage.relay.restricting, backends)


def check_terminals(config: PipelineConfig) -> None:
    """Raise ValueError if every request would wait for a terminal stage that no request reaches."""
    if config.terminal_stages_fn is not None:
        return  # The function says which terminals a request waits for.
    entry = config.resolved_entry_stage
    lost = [name for name in config.terminal_stages if name not in terminals_after([entry], config)]
    if lost:
        raise ValueError(
            f"stage {lost[0]!r} is terminal, and no route from the entry stage {entry!r} leads to it, so "
            "every request would wait for it for ever: name it in 'next' or stream_to of a stage that "
            "requests reach, leave it out, or name the stages that answer a request in terminal_stages_fn"
        )


def check_inputs(config: PipelineConfig) -> None:
    """Raise ValueError if every request would wait for a payload that no stage sends."""
    for stage in config.stages:
        if stage.wait_for_fn is not None:
            continue  # The function says which stages a request waits for.
        field, sources = "wait_for", stage.wait_for
        if stage.input_handler is not None:
            field, sources = "input_handler.sources", stage.input_handler.sources
        for source in map(config.stage, sources or ()):
            if source.get_next is None and stage.name not in source.next_stages:
                raise ValueError(
                    f"stage {stage.name!r}: {field} names {source.name!r}, which sends it no payload, so "
                    f"every request would wait for it for ever: name {stage.name!r} in 'next' of "
                    f"{source.name!r}, or leave {source.name!r} out"
                )


def terminals_after(stages: Iterable[str], config: PipelineConfig) -> frozenset[str]:
    """The terminal stages that a request in any of ``stages`` may reach, or is in."""
    found: set[str] = set()
    ahead = list(stages)
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += [target.name for target in _targets(config.stage(name), config)]
    return frozenset(found.intersection(config.terminal_stages))


def _targets(stage: StageConfig, config: PipelineConfig) -> list[StageConfig]:
    if stage.get_next is not None:
        return config.stages
    return [config.stage(name) for name in dict.fromkeys([*stage.next_stages, *stage.stream_to])]


def _reachable(
    source: StageInstance, target: StageConfig, process_of: Mapping[str, str]
) -> list[StageInstance]:
    instances = instances_of(target)
    # Stages of a process are replicated together, and a request has the same replica of all of them.
    together = [instance for instance in instances if _share_process(source, instance, process_of)]
    return together or instances


def _share_process(source: StageInstance, target: StageInstance, process_of: Mapping[str, str]) -> bool:
    process = process_of.get(source.name)
    return process is not None and process_of.get(target.name) == process


def _plan_edge(
    source: StageInstance, target: StageInstance, config: PipelineConfig, process_of: Mapping[str, str]
) -> Edge:
    stage, to = source.stage, target.stage.name
    kinds: list[Kind] = []
    if stage.get_next is not None or to in stage.next_stages:
        kinds.append("payload")
    if to in stage.stream_to:
        kinds.append("stream")
    if _share_process(source, target, process_of):
        fans_out = stage.get_next is not None or len(stage.next_stages) > 1
        shared = config.relay_backend if fans_out and "payload" in kinds else None
        reason = "same process" + (f"; {shared} for what several stages get" if shared is not None else "")
        return Edge(source.name, target.name, tuple(kinds), LOCAL_OBJECT, reason, shared)
    backend, reason = _backend(source, target, config)
    is_lent = (
        source.node == target.node
        and stage.tp_size == 1
        and bool(source.gpu_ids)
        and source.gpu_ids == target.gpu_ids
        and relay_backend(backend).lends_tensors
    )
    return Edge(source.name, target.name, tuple(kinds), backend, reason, backend, is_lent)


def _backend(source: StageInstance, target: StageInstance, config: PipelineConfig) -> tuple[str, str]:
    """The backend of an edge between processes, and the reason in words."""
    chosen = source.stage.edge_relays.get(target.stage.name)
    if source.node == target.node:
        where = "same host" if source.node is None else f"both on {source.host}"
        return (chosen, "edge_relays") if chosen is not None else (config.relay_backend, where)
    where = f"from {source.host} to {target.host}"
    if chosen is not None:
        field, backend, reason = "edge_relays", chosen, "edge_relays"
    elif relay_backend(config.relay_backend).crosses_hosts:
        return config.relay_backend, where
    else:
        field, backend = "network_relay_backend", config.network_relay_backend
        reason = f"{where}, which {config.relay_backend} does not reach"
    if not relay_backend(backend).crosses_hosts:
        raise ValueError(
            f"stage {source.stage.name!r} sends to {target.stage.name!r} {where}, but {backend!r}, of "
            f"{field}, does not reach other hosts; use one of {', '.join(network_backends())}, or one node "
            "for both"
        )
    return backend, reason
