"""The processes of a run on one host, started and ended as the coordinator wants."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from sglang_omni.config.draw.report import validate_config
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.pipeline.processes.hosts.messages import (
    Launch,
    ProcessReport,
    ReportMessage,
    WantedMessage,
    WelcomeMessage,
)
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.local import LocalLauncher
from sglang_omni.pipeline.processes.plan import plan_run
from sglang_omni.pipeline.processes.pulse import PULSE_S
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.pipeline.transport.keys import RunKeys

logger = logging.getLogger(__name__)

# A killed process ends as soon as the kernel has taken its memory back.
_KILLED_S = 60.0


class NodeRun:
    """A run's processes on this host, which plans them itself from the run's config.

    Attributes:
        changed: Set whenever ``report`` has changed.
    """

    def __init__(self, node: str, address: str, welcome: WelcomeMessage) -> None:
        """Plan the processes, and start none.

        Args:
            node: This host's node in the config.
            address: This host's address for other hosts.
            welcome: The coordinator's message about the run.

        Raises:
            ValueError: The config does not work on this host.
            ImportError: A class that the config names is not installed here.
            OSError: A file that the config names is missing here, or there is no folder for the sockets.
        """
        missing = [path for path in welcome.paths if not Path(path).exists()]
        if missing:
            raise FileNotFoundError(
                f"{', '.join(missing)}: not on this host, but on the coordinator's; copy it here, to the "
                "same place"
            )
        config = PipelineConfig.from_dict(welcome.config)
        self._plan = plan_run(
            validate_config(config),
            node=node,
            host_address=address,
            keys=RunKeys.from_secret(welcome.run_key),
            coordinator_endpoints=welcome.endpoints,
        )
        self._specs = {
            spec.process_name: spec
            for spec in self._plan.process_specs(welcome.endpoints)
            if spec.node == node
        }
        self._launcher = LocalLauncher()
        self._launched: dict[int, list[LaunchedProcess]] = {}
        # Launches that could not be started.
        self._failed: dict[int, list[ProcessReport]] = {}
        # Processes told to end, by launch and name: the coordinator repeats it until they have ended.
        self._killed: set[tuple[int, str]] = set()
        self.changed = asyncio.Event()

    def apply(self, wanted: WantedMessage) -> None:
        """Start new launches, kill what must end, and forget launches that are over."""
        numbers = {launch.number for launch in wanted.launches}
        for number in self._launched.keys() - numbers:
            for process in self._launched.pop(number):
                process.kill()
        self._killed = {each for each in self._killed if each[0] in numbers}
        for number in self._failed.keys() - numbers:
            del self._failed[number]
        for launch in wanted.launches:
            if launch.number not in self._launched and launch.number not in self._failed:
                self._start(launch)
            for process in self._launched.get(launch.number, ()):
                if process.name in launch.killed and (launch.number, process.name) not in self._killed:
                    self._killed.add((launch.number, process.name))
                    process.kill(stacks=process.name in launch.with_stacks)

    def report(self) -> ReportMessage:
        """The state of every process of the wanted launches."""
        running = [
            _report(number, process) for number, processes in self._launched.items() for process in processes
        ]
        return ReportMessage(
            processes=running + [report for failed in self._failed.values() for report in failed]
        )

    async def close(self) -> None:
        """End every process, and remove the folder of their sockets."""
        processes = [process for processes in self._launched.values() for process in processes]
        for process in processes:
            process.kill()
        if processes:
            await asyncio.wait([process.exited for process in processes], timeout=_KILLED_S)
        self._plan.runtime_dir.close()

    def _start(self, launch: Launch) -> None:
        try:
            specs = [self._spec(name) for name in launch.processes]
            processes = self._launcher.launch(specs)
        except (OSError, ValueError) as exc:
            text = f"cannot be started: {exc}"
            self._failed[launch.number] = [
                ProcessReport(launch=launch.number, name=name, pid=0, status=1, exit_text=text, failure=text)
                for name in launch.processes
            ]
            self.changed.set()
            return
        self._launched[launch.number] = processes
        for process in processes:
            logger.info("Started process %r (pid %d)", process.name, process.pid)
            process.ready.add_done_callback(self._on_ready)
            process.exited.add_done_callback(partial(self._on_exit, process))
        self.changed.set()

    def _spec(self, name: str) -> ProcessSpec:
        if name not in self._specs:
            raise ValueError(f"process {name!r} is not on this node: {sorted(self._specs)} are")
        return self._specs[name]

    def _on_ready(self, ready: asyncio.Future[None]) -> None:
        processes = [process for processes in self._launched.values() for process in processes]
        running = [process for process in processes if not process.exited.done()]
        if ready.exception() is None and all(process.ready.done() for process in running):
            names = ", ".join(repr(process.name) for process in running)
            logger.info("Running %s", names)
        self.changed.set()

    def _on_exit(self, process: LaunchedProcess, exited: asyncio.Future[int]) -> None:
        logger.info("Process %r %s", process.name, process.describe_exit())
        self.changed.set()


def _report(launch: int, process: LaunchedProcess) -> ProcessReport:
    ready = process.ready.done() and process.ready.exception() is None
    failed = process.ready.exception() if process.ready.done() else None
    exited = process.exited.done()
    return ProcessReport(
        launch=launch,
        name=process.name,
        pid=process.pid,
        ready=ready,
        endpoints=process.endpoints,
        status=process.exited.result() if exited else None,
        exit_text=process.describe_exit() if exited else "",
        failure=str(failed) if failed is not None else None,
        pulse=process.vitals.pulse if ready and not exited else None,
        silent_s=process.vitals.silent_s,
        state=process.state if process.vitals.silent_s > PULSE_S else "",
    )
