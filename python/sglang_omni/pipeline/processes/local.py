"""The launcher of processes on this host."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sglang_omni.config.plan import PipelinePlan
from sglang_omni.gpus import visible_devices
from sglang_omni.pipeline.processes.environment import (
    all_reduce_environment,
    process_environment,
    refuse_missing_gpus,
    with_port,
)
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.process import ChildProcess
from sglang_omni.pipeline.specs import ProcessSpec


class LocalLauncher:
    """Starts processes as children of this one."""

    host_address = None

    def place(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan as it is: a stage without a ``node`` runs here."""
        return plan

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Nothing needs to be prepared.

        Raises:
            RuntimeError: One of them belongs on another host.
            ValueError: A stage's GPU is not there.
        """
        elsewhere = next((spec for spec in specs if spec.node is not None), None)
        if elsewhere is not None:
            raise RuntimeError(
                f"process {elsewhere.process_name!r} belongs on node {elsewhere.node!r}, but no host joins "
                "this run; leave `node` out, or let hosts join (--join-port)"
            )
        refuse_missing_gpus(specs, len(visible_devices()))

    async def await_host(self, ranks: Sequence[ProcessSpec]) -> None:
        """Return at once: this host is there."""

    def launch(self, ranks: Sequence[ProcessSpec]) -> list[LaunchedProcess]:
        """See ``Launcher``. Ranks get a port that is theirs while they run."""
        held = None
        of_ranks = all_reduce_environment(ranks, os.environ)
        if len(ranks) > 1:
            ranks, held = with_port(ranks)
        processes: list[LaunchedProcess] = []
        try:
            for spec in ranks:
                environment = process_environment(spec, os.environ) | of_ranks
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

    def release(self, ranks: Sequence[ProcessSpec]) -> None:
        """Nothing: processes that have ended hold nothing."""

    async def close(self) -> None:
        """Nothing: there is nothing to give back."""
