"""A Ray actor that runs one process of a pipeline."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import multiprocessing
import os
import socket
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace

import ray
from ray.util.metrics import Gauge

from sglang_omni.config.plan.pipeline import plan_pipeline
from sglang_omni.pipeline.processes import inside
from sglang_omni.pipeline.processes.child import ReadStats, run_stages
from sglang_omni.pipeline.processes.plan import plan_run
from sglang_omni.pipeline.processes.reporting import LONGEST_TRACEBACK, configure_logging
from sglang_omni.pipeline.processes.run_dir import IpcRuntimeDir, join_ipc_runtime_dir
from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.proto.stats import STATS_DESCRIPTIONS

# Ray itself exports every 10 s by default.
_METRICS_INTERVAL_S = 1.0
# Characters of the name of a run's folder, which is part of its sockets' paths.
_RUN_NAME = 12


@dataclass(frozen=True)
class Arrival:
    """A process that Ray has started for an actor, and where.

    Attributes:
        token: Unique to the process, which its id is not: the system gives ids out again.
        address: Its node's address for Ray's other nodes.
        free_port: A port that is free on its node now.
        log: The file on its node that is its stderr, or "".
    """

    token: str
    pid: int
    node_id: str
    address: str
    free_port: int
    log: str


class StageActor:
    """Runs the stages of one process, once. Ray starts another process for the next time.

    Its methods run in the process's main thread, one after the other, as in a process of this host.
    """

    def __init__(self, process_name: str) -> None:
        self._name = process_name
        self._token = uuid.uuid4().hex
        inside.inside_child = True

    def __repr__(self) -> str:
        return self._name  # what Ray puts before each of its lines at the driver

    @ray.method(max_task_retries=-1)  # answered by the process that Ray is about to start
    def enter(self, python_path: Sequence[str]) -> Arrival:
        """Get ready to run: the driver's modules can be imported then, if this node has them."""
        sys.path += [folder for folder in python_path if folder not in sys.path and os.path.isdir(folder)]
        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        node_id = ray.get_runtime_context().get_node_id()
        return Arrival(self._token, os.getpid(), node_id, address, port, _stderr_file())

    @ray.method(max_task_retries=0)  # a second process would not know what the first one's requests were
    def run(self, spec: ProcessSpec, port: int) -> Iterator[dict[str, object]]:
        """Run the stages until they have been told to leave. Yields the reports of ``run_stages``.

        Args:
            spec: The process. Its stages are wired from its config, here as on any host.
            port: The port where the collectives of a stage's ranks begin.
        """
        multiprocessing.current_process().name = spec.process_name
        configure_logging(spec)
        try:
            name = hashlib.sha256(spec.keys.public.encode()).hexdigest()[:_RUN_NAME]
            with join_ipc_runtime_dir(spec.config, name) as folder, asyncio.Runner() as runner:
                reports = run_stages(_planned_here(spec, folder, port), beside=_export_metrics)
                while (report := runner.run(_next(reports))) is not None:
                    yield report
        except BaseException:  # noqa: BLE001  the driver is told of anything, sys.exit() included
            text = traceback.format_exc()
            logging.getLogger(__name__).error("The process ends with an error\n%s", text)
            yield {"failure": text[-LONGEST_TRACEBACK:]}


def _stderr_file() -> str:
    path = os.readlink(f"/proc/self/fd/{sys.__stderr__.fileno()}") if sys.__stderr__ is not None else ""
    return path if os.path.isfile(path) else ""


def _planned_here(spec: ProcessSpec, folder: IpcRuntimeDir, port: int) -> ProcessSpec:
    """The process, wired for this node: its sockets, addresses, and the one GPU that Ray lets it see."""
    plan = plan_run(
        plan_pipeline(spec.config),
        ipc_runtime_dir=folder,
        node=spec.node,
        host_address=ray.util.get_node_ip_address(),
        keys=spec.keys,
        coordinator_endpoints=spec.coordinator_tcp,
    )
    planned = plan.process_specs(spec.coordinator_tcp)
    (own,) = (it for it in planned if it.process_name == spec.process_name)
    return replace(own, log_level=spec.log_level, stages=tuple(on_first_gpu(it, port) for it in own.stages))


def on_first_gpu(launch: StageLaunchConfig, port: int) -> StageLaunchConfig:
    """The stage on the one GPU that Ray lets its process see, whatever number the config names."""
    if launch.gpu_id is None:
        return replace(launch, nccl_port=port)
    relays = {
        backend: options | ({"device": "cuda:0"} if str(options["device"]).startswith("cuda") else {})
        for backend, options in launch.relay_configs.items()
    }
    # Another process of this GPU's number may have another GPU.
    return replace(launch, gpu_id=0, nccl_port=port, relay_configs=relays, same_gpu_targets=frozenset())


async def _next(reports: AsyncIterator[dict[str, object]]) -> dict[str, object] | None:
    return await anext(reports, None)


async def _export_metrics(process: str, read: ReadStats) -> None:
    """Have Ray export the stages' numbers on this node's metrics port, under the names of ``/metrics``."""
    gauges: dict[str, Gauge] = {}
    while True:
        for stage, numbers in read().items():
            for name, value in numbers.items():
                if name not in gauges:
                    gauges[name] = Gauge(
                        f"sglang_omni_stage_{name}",
                        description=STATS_DESCRIPTIONS.get(name, "Reported by the stage."),
                        tag_keys=("stage", "process"),
                    )
                gauges[name].set(value, {"stage": stage, "process": process})
        await asyncio.sleep(_METRICS_INTERVAL_S)
