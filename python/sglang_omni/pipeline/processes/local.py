"""The launcher of processes on this host."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence

from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.gpus import visible_devices
from sglang_omni.pipeline.processes.environment import (
    all_reduce_environment,
    process_environment,
    refuse_missing_gpus,
    with_port,
)
from sglang_omni.pipeline.processes.fork_server import ForkServer, ForkServerLost
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.mps import MpsDaemon, MpsMode, start_mps
from sglang_omni.pipeline.processes.process import ChildProcess
from sglang_omni.pipeline.specs import ProcessSpec

logger = logging.getLogger(__name__)


class LocalLauncher:
    """Starts processes as children of this one: new ones, or forked where several need the same modules.

    Args:
        mps: True if those on GPUs use CUDA's Multi-Process Service: ``"auto"`` if some share a GPU and it can
            be had, ``"on"``, ``"off"``.
    """

    host_address = None

    def __init__(self, mps: MpsMode = "auto") -> None:
        self._mps_mode = mps
        self._mps: MpsDaemon | None = None
        self._fork_server: ForkServer | None = None

    def place(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan as it is: a stage without a ``node`` runs here."""
        return plan

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start the MPS daemon and the fork server, each if it is of use.

        Raises:
            RuntimeError: One of them belongs on another host, or MPS must be used and cannot be.
            ValueError: A stage's GPU is not there.
        """
        elsewhere = next((spec for spec in specs if spec.node is not None), None)
        if elsewhere is not None:
            raise RuntimeError(
                f"process {elsewhere.process_name!r} belongs on node {elsewhere.node!r}, but no host joins "
                "this run; leave `node` out, or let hosts join (--join-port)"
            )
        refuse_missing_gpus(specs, len(visible_devices()))
        self._mps = await start_mps(self._mps_mode, specs)
        await self._start_fork_server([spec for spec in specs if spec.starts_at_once])

    async def await_host(self, ranks: Sequence[ProcessSpec]) -> None:
        """Return at once: this host is there."""

    def launch(self, ranks: Sequence[ProcessSpec]) -> list[LaunchedProcess]:
        """See ``Launcher``. Ranks get a port that is theirs while they run."""
        held = None
        if len(ranks) > 1:
            ranks, held = with_port(ranks)
        processes: list[LaunchedProcess] = []
        try:
            for spec, environment in zip(ranks, self.environments(ranks), strict=True):
                processes.append(self._start_process(spec, environment))
        except BaseException:
            for process in processes:
                process.kill()
            if held is not None:
                held.close()
            raise
        if held is not None:
            processes[0].exited.add_done_callback(lambda _: held.close())
        return processes

    def environments(self, ranks: Sequence[ProcessSpec]) -> list[dict[str, str]]:
        """The whole environment of each process that ``launch`` would start.

        Raises:
            ValueError: A stage's GPU is not visible.
        """
        environments = [process_environment(spec, os.environ) for spec in ranks]
        if self._mps is not None:
            extra = [self._mps.environment_of(spec) for spec in ranks]
            environments = [env | more for env, more in zip(environments, extra, strict=True)]
        of_ranks = all_reduce_environment(ranks, environments)
        return [env | of_ranks for env in environments]

    def release(self, ranks: Sequence[ProcessSpec]) -> None:
        """Nothing: processes that have ended hold nothing."""

    async def close(self) -> None:
        """End the fork server and the MPS daemon."""
        server, self._fork_server = self._fork_server, None
        if server is not None:
            server.close()
        mps, self._mps = self._mps, None
        if mps is not None:
            await mps.close()

    async def _start_fork_server(self, specs: Sequence[ProcessSpec]) -> None:
        modules = {name: None for spec in specs for name in spec.config.preload}
        # A forked process ends with this one's main thread, and should end with the thread that starts it.
        if len(specs) < 2 or not modules or threading.current_thread() is not threading.main_thread():
            return
        # What differs between the processes, their GPUs, is read when a GPU is first used.
        self._fork_server = ForkServer(list(modules), specs[0].config.env_defaults | dict(os.environ))
        if why_not := await self._fork_server.ready():
            self._leave_fork_server(why_not)

    def _start_process(self, spec: ProcessSpec, environment: Mapping[str, str]) -> ChildProcess:
        if self._fork_server is not None:
            try:
                return ChildProcess(spec.process_name, spec, environment, self._fork_server.fork)
            except ForkServerLost as exc:
                self._leave_fork_server(str(exc))
        return ChildProcess(spec.process_name, spec, environment)

    def _leave_fork_server(self, why: str) -> None:
        logger.warning("Each stage's process imports its modules itself, as none can be forked: %s", why)
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None
