"""Starts the processes of a plan, watches them, and restarts those that die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from sglang_omni.config.plan.instances import stage_of
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.launcher import LaunchedProcess, Launcher
from sglang_omni.pipeline.processes.plan import RunPlan
from sglang_omni.pipeline.processes.process import ProcessFailure
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.supervision.restarts import Restarts

logger = logging.getLogger(__name__)

# How long stages may take to leave before their processes are killed. With a second in which a server lets
# requests finish, everything is gone within five.
LEAVE_S = 3.0
# A killed process ends as soon as the kernel has taken its memory back.
_KILLED_S = 60.0


class SupervisedProcess:
    """One process of the plan, or all ranks of a tensor-parallel stage: started, and restarted when it ends.

    Raises OSError if it cannot be started.

    Attributes:
        specs: The process's, or its ranks'.
        processes: The present processes, one for each spec, or the last ones while there are none.
        restarts: Counts its deaths.
        is_leaving: It is a replica that the load does not call for any more; it is not restarted.
        is_given_up: It has died too often to be restarted.
    """

    def __init__(self, specs: Sequence[ProcessSpec], launcher: Launcher, restarts: Restarts) -> None:
        self.specs = specs
        self.restarts = restarts
        self.is_leaving = False
        self.is_given_up = False
        self._launcher = launcher
        self.processes: list[LaunchedProcess] = launcher.launch(specs)
        # The process that is being ended for a fault, and the fault.
        self._fault: tuple[LaunchedProcess, str] | None = None

    @property
    def instances(self) -> list[str]:
        """The instances of stages that run here."""
        return self.specs[0].instances

    @property
    def group(self) -> tuple[str, ...]:
        """Its stages by their own names: the same for every replica."""
        return self.specs[0].group

    @property
    def name(self) -> str:
        return ", ".join(repr(spec.process_name) for spec in self.specs)

    @property
    def endpoints(self) -> dict[str, str]:
        """Where other hosts reach its instances, by instance; complete when it is ready."""
        return {key: endpoint for process in self.processes for key, endpoint in process.endpoints.items()}

    @property
    def is_up(self) -> bool:
        """True if all its processes run and are ready."""
        return all(
            process.ready.done() and process.ready.exception() is None and not process.exited.done()
            for process in self.processes
        )

    @property
    def is_ending(self) -> bool:
        """True if ``end`` was called, and no restart since."""
        return self._fault is not None

    @property
    def host_lost(self) -> bool:
        """True if, after ``ended``, it ended with the host of one of its processes."""
        return any(process.host_lost for process in self.processes)

    def end(self, process: LaunchedProcess, fault: str) -> None:
        """End its processes, because one of them ``has not answered``. They write their stacks first."""
        self._fault = (process, fault)
        for each in self.processes:
            each.kill(stacks=True)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    async def ready(self) -> None:
        """Return when all its processes are ready.

        Raises:
            ProcessFailure: One of them has ended before.
        """
        ready = [process.ready for process in self.processes]
        done, _ = await asyncio.wait(ready, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()

    async def ended(self) -> str:
        """Return how it ended, once one of its processes has. The other ranks cannot go on and are killed."""
        exits = {process.exited: process for process in self.processes}
        done, _ = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        # If several have ended, the one that was killed is the cause, and not the one that noticed.
        first = min((exits[exited] for exited in done), key=lambda process: process.exited.result())
        self.kill()
        names = self.instances
        stages = f"stage {names[0]!r}" if len(names) == 1 else f"stages {', '.join(map(repr, names))}"
        if self._fault is None:
            return f"{stages}: process {first.name!r} {first.describe_exit()}"
        at_fault, fault = self._fault
        return f"{stages}: process {at_fault.name!r} {fault}; it was ended"

    async def restart(self) -> None:
        """Start it again, after ``ended``, as soon as the host of its processes is there.

        Raises:
            OSError: It cannot be started.
        """
        await self._launcher.await_host(self.specs)
        self.processes = self._launcher.launch(self.specs)
        self._fault = None


class Supervisor:
    """Keeps the processes of a run going. It alone decides which of them run, leave and are given up.

    Args:
        plan: The run's.
        coordinator: Is told which instances are up or down, and where they are.
        launcher: Starts the processes.
        max_restarts: Deaths of one process within the window that are followed by a restart; None: all are.
        restart_window: Seconds after which a death is forgotten.
        start_timeout: Seconds that a process has to get its stages up, at the start and after a restart.

    Attributes:
        processes: All that run or await a restart, and those that were given up.
        lost: Holds the reason once the pipeline is lost: all replicas of some process were given up.
    """

    def __init__(
        self,
        plan: RunPlan,
        coordinator: Coordinator,
        launcher: Launcher,
        *,
        max_restarts: int | None,
        restart_window: float,
        start_timeout: float,
    ) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._launcher = launcher
        self._max_restarts = max_restarts
        self._restart_window = restart_window
        self._start_timeout = start_timeout
        self.processes: list[SupervisedProcess] = []
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: dict[SupervisedProcess, asyncio.Task[None]] = {}

    async def start(self, planned: Iterable[Sequence[ProcessSpec]]) -> None:
        """Start processes, given as the ranks of each, and supervise them once all are up.

        Raises:
            OSError: One cannot be started.
            ProcessFailure: One has ended before it was ready.
            TimeoutError: Some were not ready in time; the text names them.
        """
        for ranks in planned:
            self._launch(ranks)
        await self._all_ready()
        self._register(*self.processes)
        self._coordinator.stages.move(
            {name: endpoint for each in self.processes for name, endpoint in each.endpoints.items()}
        )
        for each in self.processes:
            self._supervise(each, is_up=True)

    def replicas(self, group: tuple[str, ...]) -> dict[int, SupervisedProcess]:
        """The present replicas of the process with these stages, by number."""
        return {each.specs[0].replica or 0: each for each in self.processes if each.group == group}

    def add(self, ranks: Sequence[ProcessSpec]) -> None:
        """Start one more replica; it takes requests once it is up.

        Raises:
            OSError: It cannot be started.
        """
        self._supervise(self._launch(ranks), is_up=False)

    def retire(self, replica: SupervisedProcess) -> None:
        """Give a replica no more requests. ``remove`` it when it has none, or ``recall`` it before."""
        replica.is_leaving = True
        self._coordinator.replicas.retire(replica.instances)

    def recall(self, replica: SupervisedProcess) -> None:
        """Give a replica requests again."""
        replica.is_leaving = False
        self._coordinator.replicas.readmit(replica.instances)

    async def remove(self, replica: SupervisedProcess) -> None:
        """Have a replica leave that has no requests, and return when its processes have ended."""
        supervision = self._tasks.pop(replica)
        supervision.cancel()
        await asyncio.wait({supervision})
        if self._coordinator.replicas.are_up(replica.instances):
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self._coordinator.shutdown_stages(replica.instances)
                    await _ended(replica.processes, LEAVE_S)
            except TimeoutError:
                logger.warning("Process %s did not leave in time and is killed", replica.name)
        replica.kill()
        await _ended(replica.processes, _KILLED_S)
        self._launcher.release(replica.specs)
        for name in replica.instances:
            self._coordinator.unregister_stage(name)
        self.processes.remove(replica)
        logger.info("Process %s has left", replica.name)

    async def stop(self, leave_s: float) -> None:
        """Have every stage leave, kill the processes that have not left in time, and wait for their end.

        Args:
            leave_s: Seconds that the stages have. 0: all are killed at once.
        """
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        processes = [process for each in self.processes for process in each.processes]
        try:
            if leave_s > 0:
                for process in processes:
                    if not process.ready.done():
                        process.kill()  # it could not be told to leave yet
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
            await _ended(late, _KILLED_S)
            self.lost.cancel()

    def _launch(self, ranks: Sequence[ProcessSpec]) -> SupervisedProcess:
        restarts = Restarts(
            max_restarts=self._max_restarts, window_s=self._restart_window, first_at_once=True
        )
        launched = SupervisedProcess(ranks, self._launcher, restarts)
        self.processes.append(launched)
        return launched

    async def _all_ready(self) -> None:
        ready = {process.ready: (process, each) for each in self.processes for process in each.processes}
        done, pending = await asyncio.wait(
            ready, timeout=self._start_timeout, return_when=asyncio.FIRST_EXCEPTION
        )
        for future in done:
            future.result()
        if pending:
            late = [ready[future] for future in pending]
            raise TimeoutError(
                f"not ready after {self._start_timeout:g} s: "
                + ", ".join(f"process {process.name!r} (stages {each.instances})" for process, each in late)
            )

    def _register(self, *processes: SupervisedProcess) -> None:
        """Tell the coordinator the instances of processes that are up, in the config's order, for readers."""
        order = [stage.name for stage in self._plan.stages_cfg]
        named = [(name, each) for each in processes for name in each.instances]
        for name, each in sorted(named, key=lambda pair: order.index(stage_of(pair[0]))):
            endpoint = self._plan.endpoints[f"stage_{name}"]
            self._coordinator.register_stage(name, endpoint, process=each.specs[0].process_name)

    def _supervise(self, supervised: SupervisedProcess, *, is_up: bool) -> None:
        task = asyncio.create_task(self._keep_going(supervised, is_up), name=f"supervise {supervised.name}")
        self._tasks[supervised] = task

    async def _keep_going(self, supervised: SupervisedProcess, is_up: bool) -> None:
        """See a process up, wait for its end and restart it, until it leaves or is given up."""
        while True:
            if not is_up:
                await self._come_up(supervised)
            is_up = False
            reason = await supervised.ended()
            self._coordinator.stage_down(supervised.instances, reason)
            await _ended(supervised.processes, _KILLED_S)
            if supervised.is_leaving:
                logger.warning("%s, before it was to leave", reason)
                return
            if supervised.host_lost:
                logger.error("%s; it is started again when its host is back", reason)
            elif not await self._outlast(supervised, reason):
                return
            if not await self._restart(supervised, reason):
                return

    async def _come_up(self, supervised: SupervisedProcess) -> None:
        """Return when it is up, or about to end."""
        try:
            await asyncio.wait_for(supervised.ready(), self._start_timeout)
        except ProcessFailure:
            return
        except TimeoutError:
            logger.error("Process %s was not ready after %g s", supervised.name, self._start_timeout)
            supervised.kill()
            return
        self._register(supervised)
        self._coordinator.stages.move(supervised.endpoints)
        self._coordinator.stage_up(supervised.instances)
        logger.info("Process %s is up", supervised.name)

    async def _restart(self, supervised: SupervisedProcess, reason: str) -> bool:
        """Restart it, and try again if that fails. False if it was given up instead."""
        while True:
            try:
                await supervised.restart()
                return True
            except OSError as exc:
                again = f"{reason}; it could not be started again yet: {exc}"
            self._coordinator.stage_down(supervised.instances, again)
            if not await self._outlast(supervised, again):
                return False

    async def _outlast(self, supervised: SupervisedProcess, reason: str) -> bool:
        """Count a death, and return when it may be restarted; False if it is given up."""
        delay = supervised.restarts.after_death(asyncio.get_running_loop().time())
        if delay is None:
            deaths = supervised.restarts.deaths
            self._give_up(supervised, f"{reason}; it has died {deaths} times and is not restarted again")
            return False
        logger.error("%s; restarting it in %g s", reason, delay)
        await asyncio.sleep(delay)
        return True

    def _give_up(self, supervised: SupervisedProcess, reason: str) -> None:
        supervised.is_given_up = True
        self._launcher.release(supervised.specs)
        if not all(replica.is_given_up for replica in self.replicas(supervised.group).values()):
            logger.critical("%s; its other replicas go on", reason)
            return
        logger.critical("The pipeline is lost: %s", reason)
        self._coordinator.fail_all(reason)
        if not self.lost.done():
            self.lost.set_result(reason)


async def _ended(processes: Iterable[LaunchedProcess], timeout: float) -> None:
    """Wait for processes to end, for ``timeout`` seconds at most."""
    if exits := [process.exited for process in processes]:
        await asyncio.wait(exits, timeout=timeout)
