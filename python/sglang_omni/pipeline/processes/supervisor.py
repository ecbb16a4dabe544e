"""A place in the plan of processes, and what fills it at the moment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from sglang_omni.pipeline.processes.launcher import LaunchedProcess, Launcher
from sglang_omni.pipeline.specs import ProcessSpec

# The first restart comes at once; each further one within the window waits twice as long.
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0


class SupervisedProcess:
    """One process of the plan, or all ranks of a tensor-parallel stage. It is filled when created.

    Raises OSError where its processes cannot be started.

    Attributes:
        is_leaving: Whether it is a replica that is not needed any more: it is not filled again.
        is_given_up: Whether it has died too often to be filled again.
    """

    def __init__(self, specs: Sequence[ProcessSpec], launcher: Launcher) -> None:
        self.specs = specs
        self._launcher = launcher
        self.processes: list[LaunchedProcess] = launcher.launch(specs)
        # Of what it is being ended for: which process, and why.
        self._fault: tuple[LaunchedProcess, str] | None = None
        # Times of those deaths that make the next restart wait, and count against the budget if there is one.
        self.deaths: deque[float] = deque()
        self.is_leaving = False
        self.is_given_up = False

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
        """Where other hosts reach its instances, by instance; there when it is ready."""
        return {key: endpoint for process in self.processes for key, endpoint in process.endpoints.items()}

    @property
    def is_up(self) -> bool:
        """Whether all its processes are there and ready."""
        return all(
            process.ready.done() and process.ready.exception() is None and not process.exited.done()
            for process in self.processes
        )

    @property
    def is_ending(self) -> bool:
        """Whether it has been told to ``end``, and not been filled again since."""
        return self._fault is not None

    def end(self, process: LaunchedProcess, fault: str) -> None:
        """End its processes, because one of them ``has not answered``, their stacks written first."""
        self._fault = (process, fault)
        for each in self.processes:
            each.kill(stacks=True)

    def restart(self) -> None:
        """Fill it anew, after ``ended``. Raises OSError if that cannot be."""
        self.processes = self._launcher.launch(self.specs)
        self._fault = None

    async def ready(self) -> None:
        """Returns when all of its processes are. Raises the ProcessFailure of the first that is not to be."""
        ready = [process.ready for process in self.processes]
        done, _ = await asyncio.wait(ready, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()

    async def ended(self) -> str:
        """Returns how it ended, once one of its processes has. The others are killed: none can do without."""
        exits = {process.exited: process for process in self.processes}
        done, _ = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        # Where several are gone by now, the one that was killed is not the one that noticed.
        first = min((exits[exited] for exited in done), key=lambda process: process.exited.result())
        self.kill()
        names = self.instances
        stages = f"stage {names[0]!r}" if len(names) == 1 else f"stages {', '.join(map(repr, names))}"
        if self._fault is None:
            return f"{stages}: process {first.name!r} {first.describe_exit()}"
        at_fault, fault = self._fault
        return f"{stages}: process {at_fault.name!r} {fault}; it was ended"

    @property
    def host_lost(self) -> bool:
        """Whether, after ``ended``, it was because of the host of one of its processes."""
        return any(process.host_lost for process in self.processes)

    async def await_host(self) -> None:
        """Return when ``restart`` can be: at once, or when the host of its processes is back."""
        await self._launcher.await_host(self.specs)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def backoff(self) -> float:
        """Seconds to wait before the next restart."""
        doubled = len(self.deaths) - 2
        return 0.0 if doubled < 0 else min(_FIRST_BACKOFF_S * 2 ** min(doubled, 10), _LONGEST_BACKOFF_S)
