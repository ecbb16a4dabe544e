"""Builds a Stage, its schedulers and its routing from config, in the process that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_omni.config.factories.factory_args import (
    complete_factory_args,
    refuse_unread_gpu,
    stage_factory_path,
)
from sglang_omni.config.imports import import_callable, signature_of
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.model_runner.headers import naming_all
from sglang_omni.pipeline.specs import StageLaunchConfig
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.input import AggregatedInput, DirectInput
from sglang_omni.pipeline.stage.routing import next_stages
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.stage.warm_up import warm_up
from sglang_omni.pipeline.transport.control_plane import StageControlPlane
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.generators import generator_scheduler, is_generator
from sglang_omni.scheduling.messages import RankedScheduler, Scheduler
from sglang_omni.scheduling.ranks import RankGroup
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.worker_pool import WorkerPool


def build_stage(launch: StageLaunchConfig, config: PipelineConfig, dispatcher: LocalStageDispatcher) -> Stage:
    """Imports the stage's factory and functions, calls the factory once a worker, and wires the stage.

    Raises:
        ImportError: A dotted path of the stage names nothing.
        TypeError: The factory returned something that no stage can run.
        Exception: Whatever the factory raises.
    """
    stage = launch.stage
    assert stage is not None
    load = partial(import_callable, stage=stage.name)
    # First: importing the factory's module may register a relay.
    scheduler = build_scheduler(launch, config)
    return Stage(
        name=launch.instance,
        role=launch.role,
        get_next=next_stages(stage, load),
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
        can_accept_stream_before_payload=stage.can_accept_stream_before_payload or stage.takes_input,
        is_terminal=stage.terminal,
    )


def build_scheduler(launch: StageLaunchConfig, config: PipelineConfig) -> Scheduler:
    """The scheduler of the stage's work in this process. A rank's has met those of the other ranks.

    Raises:
        ImportError: The factory's path names nothing.
        TypeError: The factory returned something that no stage can run, or that cannot be split over ranks.
        ValueError: The stage is on a GPU or split over ranks, and the factory does not take ``gpu_id``, or
            ``tp_rank`` and ``tp_size``.
        Exception: Whatever the factory raises.
    """
    stage = launch.stage
    assert stage is not None
    if launch.device_index is not None:
        from sglang_omni.model_runner.attention import avoid_cudnn

        # Factories record graphs.
        avoid_cudnn()
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
        as_scheduler(
            naming_all(partial(factory, **arguments)),
            stage=stage.name,
            factory=path,
            feeds_stages=bool(stage.stream_to),
        )
        for _ in range(stage.num_workers)
    ]
    warm_up(
        launch.instance,
        schedulers,
        on_gpu=launch.device_index is not None,
        is_rank=launch.tp_address is not None,
    )
    if launch.tp_address is not None:
        scheduler = schedulers[0]
        if not isinstance(scheduler, RankedScheduler):
            raise TypeError(
                f"stage {stage.name!r}: tp_size={launch.tp_size}, but {path} returned a "
                f"{type(scheduler).__name__}, which cannot be split over ranks; an OmniScheduler can"
            )
        scheduler.join_ranks(RankGroup.meet(launch.tp_rank, launch.tp_size, launch.tp_address))
    return schedulers[0] if len(schedulers) == 1 else WorkerPool(schedulers)


def as_scheduler(product: Any, *, stage: str, factory: str, feeds_stages: bool = False) -> Scheduler:
    """The scheduler in what a stage's factory returned.

    A factory may return a scheduler (anything with ``inbox``, ``outbox``, ``start``, ``stop`` and
    ``abort``), an executor of the legacy form, or a plain function. The function, async or not, gets the
    request's ``StagePayload`` and returns the next one, or only its ``data``. A generator function yields
    chunks.

    Args:
        feeds_stages: True if the stage's chunks go to other stages, whether or not the caller streams.

    Raises:
        TypeError: The product is none of these.
    """
    if all(hasattr(product, name) for name in ("inbox", "outbox", "start", "stop", "abort")):
        return product
    if hasattr(product, "as_scheduler"):
        return product.as_scheduler()
    if callable(product):
        if is_generator(product):
            return generator_scheduler(product, feeds_stages=feeds_stages)
        if inspect.isasyncgenfunction(product):
            raise TypeError(
                f"stage {stage!r}: factory {factory!r} returned an async generator function, which no stage "
                "runs; write it with def in place of async def"
            )
        return SimpleScheduler(returning_payload(product))
    raise TypeError(
        f"stage {stage!r}: factory {factory!r} returned a {type(product).__name__}, expected a scheduler, an "
        "executor, or a function that takes a StagePayload"
    )


def returning_payload(function: Callable[[StagePayload], Any]) -> Callable[[StagePayload], Any]:
    """``function`` with its result put into a StagePayload, unless it is one."""

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
