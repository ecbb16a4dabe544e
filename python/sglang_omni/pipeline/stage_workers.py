"""A worker process: what it is told, how it starts its stages, and how it ends."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import spawn
from types import FrameType
from typing import Any, BinaryIO

from sglang_omni.config import PipelineConfig, plan_edges, stage_instances
from sglang_omni.pipeline import worker_process
from sglang_omni.pipeline.local_dispatch import LocalStageDispatcher
from sglang_omni.pipeline.pulse import beat_until_done
from sglang_omni.pipeline.runtime_config import PipelineRuntimePrep
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.stage_builder import (
    StageLaunchConfig,
    build_scheduler,
    build_stage,
    plan_stage_launch,
)
from sglang_omni.pipeline.transport import open_files
from sglang_omni.pipeline.transport.curve import RunKeys

_PR_SET_PDEATHSIG = 1
_STDERR = 2
# The end of a traceback is what says why; a report must fit into the pipe whoever reads it.
LONGEST_TRACEBACK = 32_000


@dataclass(frozen=True)
class WorkerSpec:
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
    def stage_names(self) -> list[str]:
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


def plan_workers(
    config: PipelineConfig,
    prep: PipelineRuntimePrep,
    *,
    coordinator_tcp: Mapping[str, str] | None = None,
) -> list[WorkerSpec]:
    """One spec for each process of the plan, the replicas that are not to start yet included.

    The ranks of a stage follow one another, rank 0 first. Stages are wired for the host of ``prep``: the host
    that a process with another ``node`` runs on plans that one itself.

    Args:
        config: The pipeline.
        prep: What was made of it.
        coordinator_tcp: As in WorkerSpec.

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
        WorkerSpec(
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


def with_port(ranks: Sequence[WorkerSpec]) -> tuple[list[WorkerSpec], socket.socket]:
    """The ranks of one stage, told a port of their own.

    Returns:
        The ranks, and the socket that holds the port until it is closed: it never listens, which leaves the
        port to the ranks and out of what the system hands out as free.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    return [
        replace(spec, stages=tuple(replace(launch, nccl_port=port) for launch in spec.stages))
        for spec in ranks
    ], held


def get_stage_process_env(spec: StageLaunchConfig, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that let a TP rank's process see its own GPU alone; none for other stages, or on the CPU.

    Args:
        spec: The rank. Its ``gpu_id`` counts within what ``CUDA_VISIBLE_DEVICES`` lets through.
        env: The environment to start from; this process's when None.

    Raises:
        ValueError: The rank's GPU is not visible.
    """
    if spec.tp_size <= 1 or spec.gpu_id is None:
        return {}
    device = str(spec.gpu_id)
    visible = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")
    if visible:
        devices = [item.strip() for item in visible.split(",")]
        if spec.gpu_id >= len(devices):
            raise ValueError(
                f"stage {spec.stage_name!r}: gpu {spec.gpu_id} of rank {spec.tp_rank} is not among "
                f"CUDA_VISIBLE_DEVICES={visible!r}"
            )
        device = devices[spec.gpu_id]
    return {"CUDA_VISIBLE_DEVICES": device, "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": "true"}


def worker_environment(spec: WorkerSpec, env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with the pipeline's defaults under it and what the stages' ranks require over it."""
    environment = {**spec.config.env_defaults, **env}
    for stage in spec.stages:
        environment |= get_stage_process_env(stage, environment)
    return environment


def worker_main(source: BinaryIO, report_fd: int) -> None:
    """Run a worker process from its first line to its end. ``worker_process`` starts it.

    Args:
        source: Yields pickles of what ``multiprocessing.spawn.prepare`` needs for ``__main__``, and of a
            ``WorkerSpec``.
        report_fd: Takes JSON lines: what ``run_stages`` yields, and ``{"failure": traceback}``. It does not
            block.
    """
    # A terminal's Ctrl-C or hang-up and a service manager's SIGTERM reach every process of the group, while
    # it is the parent that decides when to end: it lets requests finish first. Handlers, unlike SIG_IGN, are
    # not passed on to programs a stage starts. SIGINT has been blocked since before this process began.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # At which line it hangs: written by C code, which waits for no lock of Python's.
    faulthandler.register(signal.SIGQUIT, _STDERR)
    os.set_inheritable(report_fd, False)
    worker_process.inside_worker = True
    status = 1
    try:
        with source:
            spawn.prepare(pickle.load(source))
            spec: WorkerSpec = pickle.load(source)
        _die_with(spec.parent_pid)
        multiprocessing.current_process().name = spec.process_name
        configure_logging(spec)
        asyncio.run(_run_and_report(spec, report_fd))
        status = 0
    except BaseException:  # noqa: BLE001  whatever it is, sys.exit() included, the parent is told
        text = traceback.format_exc()
        logging.getLogger(__name__).error("The process ends with an error\n%s", text)
        os.set_blocking(report_fd, True)  # it is told, however many heartbeats are still unread
        _report(report_fd, failure=text[-LONGEST_TRACEBACK:])
    finally:
        # Ending here and now: a thread that a stage left behind must not hold up a shutdown, and taking
        # a loaded model apart object by object takes seconds that the kernel does not need.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _leave_it_to_the_parent(number: int, frame: FrameType | None) -> None:
    pass


async def _run_and_report(spec: WorkerSpec, report_fd: int) -> None:
    async for report in run_stages(spec):
        try:
            _report(report_fd, **report)
        except BlockingIOError:
            pass  # a parent that has read nothing for minutes; the next heartbeat tells the same


async def run_stages(
    spec: WorkerSpec, beside: Callable[[str, Sequence[Stage]], Coroutine[Any, Any, None]] | None = None
) -> AsyncIterator[dict[str, object]]:
    """Build and run the stages until each has been told to leave, or one fails.

    Yields what their parent is told: once they are up ``{"ready": True}``, and as ``"endpoints"`` where other
    hosts reach which instance; from then on, every second, the fields of a ``Pulse`` as ``{"pulse": ...}``.

    Args:
        beside: Called with the process's name and its stages; what it returns runs as long as they do.

    Raises:
        Exception: Whatever a factory or a stage raises.
    """
    # Its relays' engines listen too.
    open_files.raise_limit()
    _use_gpu(spec)
    first = spec.stages[0]
    if first.role == "follower":
        # It has no sockets, no relay and no requests of its own: its scheduler does what rank 0's does.
        follower = build_scheduler(first, spec.config)
        _freeze()
        yield {"ready": True}
        async for pulse in beat_until_done([asyncio.create_task(asyncio.to_thread(follower.start))]):
            yield {"pulse": asdict(pulse)}
        return
    dispatcher = LocalStageDispatcher()
    stages = [build_stage(launch, spec.config, dispatcher) for launch in spec.stages]
    dispatcher.register_many(stages)
    for stage in stages:
        await stage.start()
    _freeze()
    instances = zip(spec.stage_names, stages, strict=True)
    yield {
        "ready": True,
        "endpoints": {
            instance: stage.tcp_endpoint for instance, stage in instances if stage.tcp_endpoint is not None
        },
    }
    running = [asyncio.create_task(stage.run(), name=f"stage {stage.name}") for stage in stages]
    companion = asyncio.create_task(beside(spec.process_name, stages)) if beside is not None else None
    try:
        # Stages of one process share its fate: the first failure ends all of them.
        async for pulse in beat_until_done(running):
            yield {"pulse": asdict(pulse)}
    finally:
        if companion is not None:
            companion.cancel()


def _freeze() -> None:
    # What is loaded by now stays. Looked through in every full collection, it would stop all stages for
    # 50 ms with torch alone.
    gc.collect()
    gc.freeze()


def _use_gpu(spec: WorkerSpec) -> None:
    gpu_id = next((stage.device_index for stage in spec.stages if stage.device_index is not None), None)
    if gpu_id is None:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(gpu_id)


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)  # it ended before the request above


def configure_logging(spec: WorkerSpec) -> None:
    """Have the process's root logger write to stderr, its name in every line."""
    logging.basicConfig(
        level=spec.log_level,
        format=f"%(asctime)s %(levelname)s [{spec.process_name}] %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _report(report_fd: int, **report: object) -> None:
    os.write(report_fd, json.dumps(report).encode() + b"\n")


def __getattr__(name: str) -> Any:
    if name == "StageGroup":
        # The name that a place in the plan of processes has in code written for such pipelines.
        from sglang_omni.pipeline.worker_slot import WorkerSlot  # worker_slot imports this module

        return WorkerSlot
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
