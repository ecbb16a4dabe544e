"""Building a Stage, its schedulers and its routing from config, in the process that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from sglang_omni.config import (
    LOCAL_OBJECT,
    Edge,
    PipelineConfig,
    StageConfig,
    StageInstance,
    import_callable,
    instance_name,
    stage_instances,
)
from sglang_omni.config.factory_args import (
    complete_factory_args,
    merge_factory_args,
    refuse_unread_gpu,
    stage_factory_path,
)
from sglang_omni.config.imports import signature_of
from sglang_omni.pipeline.control_plane import StageControlPlane
from sglang_omni.pipeline.local_dispatch import LocalStageDispatcher
from sglang_omni.pipeline.runtime_config import build_relay_configs
from sglang_omni.pipeline.stage.edge_relays import EdgeRelays
from sglang_omni.pipeline.stage.input import AggregatedInput, DirectInput
from sglang_omni.pipeline.stage.routes import checked_targets
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.transport.curve import RunKeys
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import RankedScheduler, Scheduler
from sglang_omni.scheduling.ranks import RankGroup
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.worker_pool import WorkerPool

Targets = str | list[str] | None


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


def build_stage(launch: StageLaunchConfig, config: PipelineConfig, dispatcher: LocalStageDispatcher) -> Stage:
    """Import the stage's factory and functions, call the factory once a worker, and wire the stage.

    Raises:
        ImportError: A dotted path of the stage leads nowhere.
        TypeError: The factory returned something no stage can run.
        Exception: Whatever the factory raises.
    """
    stage = launch.stage
    assert stage is not None
    load = partial(import_callable, stage=stage.name)
    # First: the module of its factory may be what registers a relay.
    scheduler = build_scheduler(launch, config)
    return Stage(
        name=launch.instance,
        role=launch.role,
        get_next=_routing(stage, load),
        gpu_id=launch.device_index,
        endpoints=launch.endpoints,
        control_plane=StageControlPlane(
            launch.instance,
            launch.endpoints[launch.instance],
            launch.coordinator_endpoint,
            launch.abort_endpoint,
            host_address=launch.host_address,
            keys=launch.keys,
        ),
        input_handler=_input_handler(stage, load),
        relays=EdgeRelays.open(launch.instance, launch.relay_configs, launch.send_over, launch.receive_over),
        scheduler=scheduler,
        project_payload={
            target: load(path, field=f"project_payload[{target!r}]")
            for target, path in stage.project_payload.items()
        },
        stream_targets=list(stage.stream_to),
        get_stream_done_targets=(
            load(stage.stream_done_to_fn, field="stream_done_to_fn") if stage.stream_done_to_fn else None
        ),
        same_gpu_targets=set(launch.same_gpu_targets),
        same_process_targets=set(launch.same_process_targets),
        local_dispatcher=dispatcher,
        can_accept_stream_before_payload=stage.can_accept_stream_before_payload,
        is_terminal=stage.terminal,
    )


def build_scheduler(launch: StageLaunchConfig, config: PipelineConfig) -> Scheduler:
    """What runs the stage's work in this process. That of a rank has met the others.

    Raises:
        ImportError: The factory's path leads nowhere.
        TypeError: The factory returned something no stage can run, or that cannot be split over ranks.
        ValueError: The stage is on a GPU or split over ranks, and the factory does not take ``gpu_id``, or
            ``tp_rank`` and ``tp_size``.
        Exception: Whatever the factory raises.
    """
    stage = launch.stage
    assert stage is not None
    path, field = stage_factory_path(stage)
    factory = import_callable(path, stage=stage.name, field=field)
    refuse_unread_gpu(stage, signature_of(factory).accepts, launch.factory_args)
    arguments = complete_factory_args(
        factory,
        launch.factory_args,
        stage,
        config,
        gpu_id=launch.device_index,
        tp_rank=launch.tp_rank,
        nccl_port=launch.nccl_port,
    )
    if launch.tp_address is not None and not {"tp_rank", "tp_size"} <= arguments.keys():
        raise ValueError(
            f"stage {stage.name!r}: tp_size={launch.tp_size}, but factory {path} cannot build a part of its "
            "model: it does not take tp_rank and tp_size"
        )
    schedulers = [
        as_scheduler(factory(**arguments), stage=stage.name, factory=path) for _ in range(stage.num_workers)
    ]
    if launch.tp_address is not None:
        scheduler = schedulers[0]
        if not isinstance(scheduler, RankedScheduler):
            raise TypeError(
                f"stage {stage.name!r}: tp_size={launch.tp_size}, but {path} returned a "
                f"{type(scheduler).__name__}, which cannot be split over ranks; an OmniScheduler can"
            )
        scheduler.join_ranks(RankGroup.meet(launch.tp_rank, launch.tp_size, launch.tp_address))
    return schedulers[0] if len(schedulers) == 1 else WorkerPool(schedulers)


def as_scheduler(product: Any, *, stage: str, factory: str) -> Scheduler:
    """The scheduler in what a stage's factory returned.

    A factory may return a scheduler (anything with ``inbox``, ``outbox``, ``start``, ``stop`` and
    ``abort``), an executor of the earlier form, or a plain function. The function, async or not, gets
    the request's ``StagePayload``; what it returns becomes the ``data`` of the payload that goes on,
    unless it returns a ``StagePayload`` itself.

    Raises:
        TypeError: It is none of these.
    """
    if all(hasattr(product, name) for name in ("inbox", "outbox", "start", "stop", "abort")):
        return product
    if hasattr(product, "as_scheduler"):
        return product.as_scheduler()
    if callable(product):
        return SimpleScheduler(returning_payload(product))
    raise TypeError(
        f"stage {stage!r}: factory {factory!r} returned a {type(product).__name__}, expected a scheduler, an "
        "executor, or a function that takes a StagePayload"
    )


def returning_payload(function: Callable[[StagePayload], Any]) -> Callable[[StagePayload], Any]:
    """``function`` with whatever it returns put into a StagePayload, unless it is one."""

    def wrap(payload: StagePayload, result: Any) -> StagePayload:
        if isinstance(result, StagePayload):
            return result
        return StagePayload(request_id=payload.request_id, request=payload.request, data=result)

    def call(payload: StagePayload) -> Any:
        result = function(payload)
        return finish(payload, result) if inspect.isawaitable(result) else wrap(payload, result)

    async def finish(payload: StagePayload, result: Any) -> StagePayload:
        return wrap(payload, await result)

    return call


def _routing(stage: StageConfig, load: Callable[..., Callable[..., Any]]) -> Callable[[str, Any], Targets]:
    if stage.get_next is not None:
        return load(stage.get_next, field="get_next")
    if stage.route_fn is not None:
        route = load(stage.route_fn, field="route_fn")
        return lambda request_id, output: checked_targets(
            route(request_id, output), stage.next_stages, stage=stage.name, hook="route_fn"
        )
    following = None if stage.terminal else stage.next
    return lambda request_id, output: following


def _input_handler(
    stage: StageConfig, load: Callable[..., Callable[..., Any]]
) -> DirectInput | AggregatedInput:
    handler = stage.input_handler
    if handler is not None and handler.type == "aggregated":
        return AggregatedInput(
            set(handler.sources or ()), load(handler.merge_fn, field="input_handler.merge_fn")
        )
    if not stage.wait_for:
        return DirectInput()
    return AggregatedInput(
        set(stage.wait_for),
        load(stage.merge_fn, field="merge_fn"),
        load(stage.wait_for_fn, field="wait_for_fn") if stage.wait_for_fn else None,
    )
