"""A pipeline whose stages run in processes of their own, started, watched and restarted by one parent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from types import TracebackType
from typing import Self

from sglang_omni.config import PipelineConfig, validate_config
from sglang_omni.config.edges import terminals_after
from sglang_omni.config.instances import stage_of
from sglang_omni.packages import warn_of_untried
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.coordinator.build import build_coordinator
from sglang_omni.pipeline.processes.autoscaler import Autoscaler
from sglang_omni.pipeline.processes.launcher import LaunchedProcess, Launcher
from sglang_omni.pipeline.processes.local import LocalLauncher
from sglang_omni.pipeline.processes.plan import plan_workers
from sglang_omni.pipeline.processes.prepare import PipelineRuntimePrep, prepare_pipeline_runtime
from sglang_omni.pipeline.processes.process import WorkerFailure, refuse_inside_worker
from sglang_omni.pipeline.processes.supervisor import WorkerSlot
from sglang_omni.pipeline.processes.watchdog import Watchdog
from sglang_omni.pipeline.specs import WorkerSpec

logger = logging.getLogger(__name__)

# How long stages may take to leave before their processes are killed. With a second in which a server lets
# requests finish, everything is gone within five.
_LEAVE_S = 3.0
# A killed process ends as soon as the kernel has taken its memory back.
_KILLED_S = 60.0


class MultiProcessPipelineRunner:
    """Runs a pipeline with one process for each process of its plan.

    When a process dies, the requests its stages hold fail at once with the stage's name and how the
    process ended, the others go on, and a new process takes its place. The ranks of a tensor-parallel stage
    end and start together. A process that hangs, or fails every request, is ended and replaced as well: see
    ``Watchdog``. A restart that fails is one more death: the next one waits longer, up to half a minute.

    Without ``max_restarts`` that goes on for ever. With it, a process that dies more than so often within
    ``restart_window`` seconds is not started again: the pipeline is lost, every request fails, and
    ``wait_failed`` returns. Of a replicated process the last replica must have gone that way; until then the
    others go on.

    A process with autoscaling begins with its fewest replicas, and gets and loses others with its load.
    A process that ends with its host does not count as dead: it starts again when the host is back.

    The processes end with this one, also when it is killed, or with the thread whose event loop
    ``start`` ran in. A Ctrl-C at the terminal reaches this process alone.

    Args:
        config: The pipeline.
        max_restarts: Deaths of one process to make good within the window. 0: the first is final; None: all
            are made good.
        restart_window: Seconds after which a death is forgotten.
        launcher: Starts the processes; on this host where it is None.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        max_restarts: int | None = None,
        restart_window: float = 300.0,
        launcher: Launcher | None = None,
    ) -> None:
        self.config = config
        self.launcher: Launcher = launcher or LocalLauncher()
        self.max_restarts = max_restarts
        self.restart_window = restart_window
        self._prep: PipelineRuntimePrep | None = None
        self._coordinator: Coordinator | None = None
        self._workers: list[WorkerSlot] = []
        self._supervision: dict[WorkerSlot, asyncio.Task[None]] = {}
        self._scaling: list[asyncio.Task[None]] = []
        self._watching: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[str] | None = None
        self._start_timeout = 0.0
        self._stopping: asyncio.Task[None] | None = None

    @property
    def coordinator(self) -> Coordinator:
        """Takes requests. There from ``start`` to ``stop``; RuntimeError otherwise."""
        if self._coordinator is None:
            raise RuntimeError("the pipeline is not running: await start() first")
        return self._coordinator

    @property
    def process_ids(self) -> dict[str, int]:
        """Process name -> id of the process that fills it now."""
        return {process.name: process.pid for worker in self._workers for process in worker.processes}

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
        refuse_inside_worker()
        warn_of_untried()
        validate_config(self.config)
        try:
            config = self.launcher.place(self.config)
            prep = self._prep = prepare_pipeline_runtime(config, host_address=self.launcher.host_address)
            self._coordinator = build_coordinator(
                config, prep.endpoints, keys=prep.keys, host_address=prep.host_address
            )
            await self._coordinator.start()
            reached_at = self._coordinator.control_plane.tcp_endpoints
            specs = plan_workers(config, prep, coordinator_tcp=reached_at)
            await self.launcher.start(specs)
            self._failed = asyncio.get_running_loop().create_future()
            self._start_timeout = timeout
            planned = [list(ranks) for _, ranks in groupby(specs, key=lambda spec: spec.stage_names)]
            for ranks in planned:
                if ranks[0].starts_at_once:
                    self._workers.append(WorkerSlot(ranks, self.launcher))
            await self._all_ready(timeout)
            self._register(*self._workers)
            self._coordinator.stages.move(
                {key: endpoint for worker in self._workers for key, endpoint in worker.endpoints.items()}
            )
        except BaseException:
            await self._shut_down(leave_s=0.0)
            raise
        for worker in self._workers:
            self._watch(worker, is_up=True)
        self._scaling = [asyncio.create_task(scaler.run()) for scaler in self._autoscalers(planned)]
        watchdog = Watchdog(config.watchdog, lambda: self._workers, self._coordinator.replicas)
        self._watching = [asyncio.create_task(watchdog.run(), name="watchdog")]
        logger.info("%d stages are up in %d processes", len(prep.stages_cfg), len(self.process_ids))

    async def stop(self) -> None:
        """Have every stage leave, and see to it that every process is gone. Takes less than five seconds."""
        if self._coordinator is None:
            return
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._shut_down(leave_s=_LEAVE_S))
        # A caller that is cancelled, e.g. by a second Ctrl-C, must not leave the work half done.
        await asyncio.shield(self._stopping)

    async def wait_failed(self) -> str:
        """Return the reason once the pipeline is lost, that is when a process's restart budget is spent.

        Raises:
            asyncio.CancelledError: The runner was stopped before.
        """
        if self._failed is None:
            raise RuntimeError("the pipeline is not running: await start() first")
        return await asyncio.shield(self._failed)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _register(self, *workers: WorkerSlot) -> None:
        """They are up: have the coordinator know their stages, in the config's order, which people read."""
        assert self._prep is not None
        order = [stage.name for stage in self.config.stages]
        named = [(name, worker) for worker in workers for name in worker.stage_names]
        for name, worker in sorted(named, key=lambda pair: order.index(stage_of(pair[0]))):
            endpoint = self._prep.endpoints[f"stage_{name}"]
            self.coordinator.register_stage(name, endpoint, process=worker.specs[0].process_name)

    def _watch(self, worker: WorkerSlot, *, is_up: bool) -> None:
        task = asyncio.create_task(self._supervise(worker, is_up), name=f"supervise {worker.name}")
        self._supervision[worker] = task

    def _autoscalers(self, planned: Sequence[Sequence[WorkerSpec]]) -> Iterator[Autoscaler]:
        for stages, of_group in groupby(planned, key=lambda ranks: ranks[0].group):
            replicas = list(of_group)
            config = self.config.stage(stages[0]).autoscaling
            if config is not None and config.max_replicas > config.min_replicas:
                terminals = terminals_after(stages, self.config)
                workers = {w.specs[0].replica or 0: w for w in self._workers if w.group == stages}
                yield Autoscaler(
                    config, replicas, terminals, self.coordinator, workers, self._add, self._remove
                )

    def _add(self, ranks: Sequence[WorkerSpec]) -> WorkerSlot:
        """Start one more replica; it takes requests once it is up."""
        worker = WorkerSlot(ranks, self.launcher)
        self._workers.append(worker)
        self._watch(worker, is_up=False)
        return worker

    async def _remove(self, worker: WorkerSlot) -> None:
        """Have a replica leave that no request needs."""
        supervision = self._supervision.pop(worker)
        supervision.cancel()
        await asyncio.wait({supervision})
        if self.coordinator.replicas.are_up(worker.stage_names):
            try:
                async with asyncio.timeout(_LEAVE_S):
                    await self.coordinator.shutdown_stages(worker.stage_names)
                    await _ended(worker.processes, _LEAVE_S)
            except TimeoutError:
                logger.warning("Process %s did not leave in time and is killed", worker.name)
        worker.kill()
        await _ended(worker.processes, _KILLED_S)
        self.launcher.release(worker.specs)
        for name in worker.stage_names:
            self.coordinator.unregister_stage(name)
        self._workers.remove(worker)
        logger.info("Process %s has left", worker.name)

    async def _all_ready(self, timeout: float) -> None:
        ready = {process.ready: process for worker in self._workers for process in worker.processes}
        done, pending = await asyncio.wait(ready, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()
        if pending:
            stages = {p.name: worker.stage_names for worker in self._workers for p in worker.processes}
            late = [ready[future].name for future in pending]
            raise TimeoutError(
                f"not ready after {timeout:g} s: "
                + ", ".join(f"process {name!r} (stages {stages[name]})" for name in late)
            )

    async def _supervise(self, worker: WorkerSlot, is_up: bool) -> None:
        while True:
            if not is_up:
                await self._come_up(worker)
            is_up = False
            reason = await worker.ended()
            self.coordinator.stage_down(worker.stage_names, reason)
            await _ended(worker.processes, _KILLED_S)
            if worker.is_leaving:
                logger.warning("%s, before it was to leave", reason)
                return
            if worker.host_lost:
                logger.error("%s; it is started again when its host is back", reason)
            elif not await self._outlast(worker, reason):
                return
            if not await self._restart(worker, reason):
                return

    async def _restart(self, worker: WorkerSlot, reason: str) -> bool:
        """Start it again, as soon as that can be. Whether it has been: it may be given up instead."""
        while True:
            await worker.await_host()
            try:
                worker.restart()
                return True
            except OSError as exc:
                again = f"{reason}; it could not be started again yet: {exc}"
            self.coordinator.stage_down(worker.stage_names, again)
            if not await self._outlast(worker, again):
                return False

    async def _outlast(self, worker: WorkerSlot, reason: str) -> bool:
        """Return when it is to be started again after a death, longer after each; False if it is given up."""
        now = asyncio.get_running_loop().time()
        worker.deaths.append(now)
        while worker.deaths[0] < now - self.restart_window:
            worker.deaths.popleft()
        if self.max_restarts is not None and len(worker.deaths) > self.max_restarts:
            self._give_up(
                worker, f"{reason}; it has died {len(worker.deaths)} times and is not restarted again"
            )
            return False
        logger.error("%s; restarting it in %g s", reason, worker.backoff())
        await asyncio.sleep(worker.backoff())
        return True

    async def _come_up(self, worker: WorkerSlot) -> None:
        """Wait until it is up, or about to end."""
        try:
            await asyncio.wait_for(worker.ready(), self._start_timeout)
        except WorkerFailure:
            return
        except TimeoutError:
            logger.error("Process %s was not ready after %g s", worker.name, self._start_timeout)
            worker.kill()
            return
        self._register(worker)
        self.coordinator.stages.move(worker.endpoints)
        self.coordinator.stage_up(worker.stage_names)
        logger.info("Process %s is up", worker.name)

    def _give_up(self, worker: WorkerSlot, reason: str) -> None:
        worker.is_given_up = True
        self.launcher.release(worker.specs)
        if all(other.is_given_up for other in self._workers if other.group == worker.group):
            self._lose(reason)
        else:
            logger.critical("%s; its other replicas go on", reason)

    def _lose(self, reason: str) -> None:
        logger.critical("The pipeline is lost: %s", reason)
        self.coordinator.fail_all(reason)
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(reason)

    async def _shut_down(self, leave_s: float) -> None:
        # The scaling first: it begins and ends supervisions.
        for tasks in (self._watching, self._scaling, self._supervision.values()):
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        processes = [process for worker in self._workers for process in worker.processes]
        try:
            if self._coordinator is not None and leave_s > 0:
                for process in processes:
                    if not process.ready.done():
                        process.kill()  # on its way up: nobody there to be told
                async with asyncio.timeout(leave_s):
                    await self._coordinator.shutdown_stages()
                    await _ended(processes, leave_s)
        except TimeoutError:
            pass  # a stage whose queue is full cannot even be told
        finally:
            late = [process for process in processes if not process.exited.done()]
            if leave_s > 0 and late:
                logger.warning(
                    "Did not leave in time and are killed: %s",
                    ", ".join(f"{p.name!r} (pid {p.pid})" for p in late),
                )
            for process in late:
                process.kill()
            try:
                await _ended(late, _KILLED_S)
            finally:
                if self._coordinator is not None:
                    await self._coordinator.stop()
                await self.launcher.close()
                if self._prep is not None:
                    self._prep.runtime_dir.close()
                if self._failed is not None:
                    self._failed.cancel()
                self._prep = self._coordinator = self._failed = None
                self._workers, self._supervision, self._scaling, self._watching = [], {}, [], []


async def _ended(processes: Iterable[LaunchedProcess], timeout: float) -> None:
    """Wait for processes to end, or for the time to be over."""
    if exits := [process.exited for process in processes]:
        await asyncio.wait(exits, timeout=timeout)
