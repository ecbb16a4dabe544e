"""The protocol of launchers, which start the processes of a plan: on this host, on others, or on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from sglang_omni.config.plan.pipeline import PipelinePlan
from sglang_omni.pipeline.processes.pulse import Vitals
from sglang_omni.pipeline.specs import ProcessSpec


class LaunchedProcess(Protocol):
    """A process that a launcher has started.

    Attributes:
        name: Its name in the plan.
        pid: Its id on the host it runs on; 0 while that is not known.
        ready: Done once its stages are up; holds a ``ProcessFailure`` if it ends before.
        exited: Holds the exit status once it has ended; -9 stands for signal 9.
        endpoints: Instance -> where stages on other hosts reach it; complete when it is ready.
        host_lost: True if it ended with the host it ran on, and not by a fault of its own.
        state: What keeps it from answering, if its host knows: ``is stopped (SIGSTOP)``; else "".
        vitals: Its heartbeat, from when it is ready.
    """

    name: str
    ready: asyncio.Future[None]
    exited: asyncio.Future[int]
    vitals: Vitals

    @property
    def state(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def endpoints(self) -> dict[str, str]: ...

    @property
    def host_lost(self) -> bool: ...

    def kill(self, *, stacks: bool = False) -> None:
        """End it now; does nothing if it has ended already.

        Args:
            stacks: Let it write its threads' stacks to its stderr first, if it can within a second.
        """
        ...

    def describe_exit(self) -> str:
        """How it ended: ``was killed by SIGKILL (exit status -9)``, ``exited with status 1: KeyError: 3``."""
        ...


class Launcher(Protocol):
    """Starts processes. All methods belong to the thread of the runner's event loop.

    Attributes:
        host_address: This host's address for the processes on other hosts; None if all are on this one.
    """

    @property
    def host_address(self) -> str | None: ...

    def place(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan with a ``node`` for every stage that must not run on this host. Called first.

        Raises:
            OSError: The cluster that places stages cannot be reached.
        """
        ...

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Get ready to start these: wait for their hosts, reserve what they need.

        Those without ``starts_at_once`` are replicas that the load may call for later.

        Raises:
            RuntimeError: There is no capacity for them; the text says for which and what to do.
            TimeoutError: A host did not join in time; the text names it.
        """
        ...

    async def await_host(self, ranks: Sequence[ProcessSpec]) -> None:
        """Return when these can be restarted, after they have ended: now, or when their host is back."""
        ...

    def launch(self, ranks: Sequence[ProcessSpec]) -> list[LaunchedProcess]:
        """Start one process, or all ranks of a tensor-parallel stage. Called again after they have ended.

        Raises:
            OSError: They cannot be started.
        """
        ...

    def release(self, ranks: Sequence[ProcessSpec]) -> None:
        """Give back the resources of these, which have ended and will not be restarted soon, or ever."""
        ...

    async def close(self) -> None:
        """Give back the resources of ``start``. Every process has ended by then. Idempotent."""
        ...
