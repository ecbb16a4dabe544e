"""A pipeline whose stages run in processes of their own: started, supervised and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any, Self

from sglang_omni.config.draw.report import validate_config
from sglang_omni.config.plan.edges import terminals_after
from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.coordinator.build import build_coordinator
from sglang_omni.pipeline.processes.autoscaler import Autoscaler
from sglang_omni.pipeline.processes.inside import refuse_inside_child
from sglang_omni.pipeline.processes.launcher import Launcher
from sglang_omni.pipeline.processes.local import LocalLauncher
from sglang_omni.pipeline.processes.plan import RunPlan, plan_run
from sglang_omni.pipeline.processes.supervisor import LEAVE_S, Supervisor
from sglang_omni.pipeline.processes.watchdog import Watchdog
from sglang_omni.pipeline.specs import ProcessSpec

logger = logging.getLogger(__name__)

_NOT_RUNNING = "the pipeline is not running: await start() first"


class MultiProcessPipelineRunner:
    """Runs a pipeline with one process for each process of its plan.

    When a process dies, the requests its stages hold fail at once with the stage's name and how the
    process ended, the others go on, and a new process takes its place. The ranks of a tensor-parallel stage
    end and start together. A process that hangs, or fails every request, is ended and replaced as well: see
    ``Watchdog``. A restart that fails is one more death: the next one waits longer, up to half a minute.

    Without ``max_restarts`` that goes on for ever. With it, a process that dies more often than that within
    ``restart_window`` seconds is given up. Once every replica of it is, the pipeline is lost: every request
    fails, and ``wait_failed`` returns.

    A process with autoscaling begins with its fewest replicas, and gets and loses others with its load.
    The end of a process with its host is no death: it starts again when the host is back.

    The processes end with this one, also if it is killed, or with the thread whose event loop ``start`` ran
    in. A Ctrl-C at the terminal ends none of them before this one stops them.

    Args:
        config: The pipeline.
        max_restarts: Deaths of one process within the window that are followed by a restart. 0: none is;
            None: all are.
        restart_window: Seconds after which a death is forgotten.
        launcher: Starts the processes; None: on this host.
        plan: The result of ``validate_config`` for this config, if it is there already.
        within_stage: True if a stage of another pipeline starts this one on purpose: its processes end with
            that stage's.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        max_restarts: int | None = None,
        restart_window: float = 300.0,
        launcher: Launcher | None = None,
        plan: PipelinePlan | None = None,
        within_stage: bool = False,
    ) -> None:
        self.config = config
        self.launcher: Launcher = launcher or LocalLauncher()
        self.max_restarts = max_restarts
        self.restart_window = restart_window
        self._pipeline = plan
        self._within_stage = within_stage
        self._plan: RunPlan | None = None
        self._coordinator: Coordinator | None = None
        self._supervisor: Supervisor | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None

    @property
    def coordinator(self) -> Coordinator:
        """Takes requests. There from ``start`` to ``stop``; RuntimeError otherwise."""
        if self._coordinator is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._coordinator

    @property
    def plan(self) -> RunPlan:
        """The plan of the run. There from ``start`` to ``stop``; RuntimeError otherwise."""
        if self._plan is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._plan

    @property
    def process_ids(self) -> dict[str, int]:
        """Name of each present process -> its id."""
        return {process["name"]: process["pid"] for process in self.describe_processes()}

    def describe_processes(self) -> list[dict[str, Any]]:
        """The present processes, each as ``{"name": ..., "pid": ..., "stages": [instance, ...]}``."""
        return [
            {"name": process.name, "pid": process.pid, "stages": supervised.instances}
            for supervised in (self._supervisor.processes if self._supervisor is not None else ())
            for process in supervised.processes
        ]

    async def start(self, timeout: float = 120.0) -> None:
        """Start every process and return when all stages are up. On an error nothing is left running.

        Args:
            timeout: Seconds for a process to get its stages up, now and after each restart.

        Raises:
            RuntimeError: A stage could not be built (the text holds its process's traceback), or the
                runner is running already.
            TimeoutError: Some processes were not ready in time; the text names them.
            ConfigError: The config cannot run; nothing has been started.
        """
        if self._coordinator is not None:
            raise RuntimeError("the pipeline is running already")
        if not self._within_stage:
            refuse_inside_child()
        pipeline = self._pipeline or validate_config(self.config)
        try:
            pipeline = self.launcher.place(pipeline)
            plan = self._plan = plan_run(pipeline, host_address=self.launcher.host_address)
            self._coordinator = build_coordinator(
                plan.config, plan.endpoints, keys=plan.keys, host_address=plan.host_address
            )
            await self._coordinator.start()
            specs = plan.process_specs(self._coordinator.control_plane.tcp_endpoints)
            await self.launcher.start(specs)
            self._supervisor = Supervisor(
                plan,
                self._coordinator,
                self.launcher,
                max_restarts=self.max_restarts,
                restart_window=self.restart_window,
                start_timeout=timeout,
            )
            planned = [list(ranks) for _, ranks in groupby(specs, key=lambda spec: spec.instances)]
            await self._supervisor.start(ranks for ranks in planned if ranks[0].starts_at_once)
        except BaseException:
            await self._shut_down(leave_s=0.0)
            raise
        supervisor = self._supervisor
        watchdog = Watchdog(self.config.watchdog, lambda: supervisor.processes, self._coordinator.replicas)
        self._watching = [
            asyncio.create_task(watchdog.run(), name="watchdog"),
            *(asyncio.create_task(scaler.run()) for scaler in self._autoscalers(planned, supervisor)),
        ]
        logger.info("%d stages are up in %d processes", len(plan.stages_cfg), len(self.process_ids))

    async def stop(self) -> None:
        """Have every stage leave, and return when every process is gone. Takes less than five seconds."""
        if self._coordinator is None:
            return
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._shut_down(leave_s=LEAVE_S))
        # A caller that is cancelled, e.g. by a second Ctrl-C, must not leave the work half done.
        await asyncio.shield(self._stopping)

    async def wait_failed(self) -> str:
        """Return the reason once the pipeline is lost, that is when a process's restart budget is spent.

        Raises:
            RuntimeError: The pipeline is not running.
            asyncio.CancelledError: The runner was stopped before.
        """
        if self._supervisor is None:
            raise RuntimeError(_NOT_RUNNING)
        return await asyncio.shield(self._supervisor.lost)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _autoscalers(
        self, planned: Sequence[Sequence[ProcessSpec]], supervisor: Supervisor
    ) -> Iterator[Autoscaler]:
        for stages, replicas in groupby(planned, key=lambda ranks: ranks[0].group):
            config = self.config.stage(stages[0]).autoscaling
            if config is not None and config.max_replicas > config.min_replicas:
                terminals = terminals_after(stages, self.config)
                yield Autoscaler(config, list(replicas), terminals, self.coordinator, supervisor)

    async def _shut_down(self, leave_s: float) -> None:
        # Before the supervisor, which they have add, remove and end processes.
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        try:
            if self._supervisor is not None:
                await self._supervisor.stop(leave_s)
        finally:
            if self._coordinator is not None:
                await self._coordinator.stop()
            await self.launcher.close()
            if self._plan is not None:
                self._plan.runtime_dir.close()
            self._plan = self._coordinator = self._supervisor = None
            self._watching = []
