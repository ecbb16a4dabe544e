"""The launcher of processes on this host."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.gpus import visible_devices
from sglang_omni.pipeline.processes.environment import (
    all_reduce_environment,
    process_environment,
    refuse_missing_gpus,
    with_port,
)
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.mps import MpsDaemon, MpsMode, start_mps
from sglang_omni.pipeline.processes.process import ChildProcess
from sglang_omni.pipeline.specs import ProcessSpec


class LocalLauncher:
    """Starts processes as children of this one.

    Args:
        mps: True if those on GPUs use CUDA's Multi-Process Service: ``"auto"`` if some share a GPU and it can
            be had, ``"on"``, ``"off"``.
    """

    host_address = None

    def __init__(self, mps: MpsMode = "auto") -> None:
        self._mps_mode = mps
        self._mps: MpsDaemon | None = None

    def place(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan as it is: a stage without a ``node`` runs here."""
        return plan

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start the MPS daemon, if there is to be one.

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
                processes.append(ChildProcess(spec.process_name, spec, environment))
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
        """End the MPS daemon."""
        mps, self._mps = self._mps, None
        if mps is not None:
            await mps.close()
