"""The process of a Ray actor as the server sees it: started, ready, lost, ended."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import ray
from ray.exceptions import RayActorError

from sglang_omni.pipeline.processes.process import (
    ProcessFailure,
    ReportingProcess,
    ended_early,
    exited_with,
    fail_ready,
)
from sglang_omni.pipeline.processes.ray.actor import Arrival

logger = logging.getLogger(__name__)

# The beginning of Ray's texts, before the cause.
_WHICH_ACTOR = re.compile(r"^The actor .*?(?:temporarily unavailable: |is dead because )")


class RayProcess(ReportingProcess):
    """An actor's process. See ``LaunchedProcess``.

    Attributes:
        life: Ends with the process.
        lost: How Ray lost it, or "".
        state: Always "", as Ray does not tell.
    """

    state = ""
    life: asyncio.Task[None]

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lost = ""
        self._handle: Any = None
        self._arrival: Arrival | None = None

    @property
    def pid(self) -> int:
        return self._arrival.pid if self._arrival is not None else 0

    def kill(self, *, stacks: bool = False) -> None:
        """End it now, without its stacks. Ray starts another process for the actor."""
        if self.exited.done():
            return
        if self._handle is None:
            self.life.cancel()
        else:
            ray.kill(self._handle, no_restart=False)

    def describe_exit(self) -> str:
        status = self.exited.result()
        if status < 0:
            return self.lost
        return exited_with(status, self.failure)

    def begins(self, handle: Any, arrival: Arrival) -> None:
        """Note the process that Ray has started for it."""
        self._handle = handle
        self._arrival = arrival
        logger.info("Process %r is %d on Ray node %s", self.name, arrival.pid, arrival.address)

    def lost_by_ray(self, cause: RayActorError) -> None:
        """Note that its process is gone, or cannot be reached."""
        if self._arrival is None:
            self.lost = f"was lost by Ray before it began: {_plain(cause)}"
            return
        arrival = self._arrival
        self.host_lost = not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == arrival.node_id)
        if self.host_lost:
            what, log = "node", ""
        else:
            what, log = "process", f", log {arrival.log}" if arrival.log else ""
        self.lost = (
            f"was lost by Ray: its {what} is gone (pid {arrival.pid} on {arrival.address}{log}): "
            f"{_plain(cause)}"
        )

    def ends(self, status: int) -> None:
        """Note that it has ended."""
        self.exited.set_result(status)
        # With the traceback: the actor's stderr is elsewhere.
        failure = ended_early(self.name, self.describe_exit(), self.failure)
        fail_ready(self.ready, ProcessFailure(str(failure)))


def _plain(cause: RayActorError) -> str:
    """The cause in Ray's words, in one line, without its advice and the actor's identity."""
    words = " ".join(str(cause).split())
    words = words.removesuffix(" The task may or may not have been executed on the actor.").rstrip(".")
    return _WHICH_ACTOR.sub("", words)
