"""A node of the config as its coordinator sees it: the host that has joined as it, and its processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from sglang_omni.pipeline.processes.hosts.messages import Launch, ProcessReport, ReportMessage, WantedMessage
from sglang_omni.pipeline.processes.process import ProcessFailure, ended_early, fail_ready
from sglang_omni.pipeline.processes.pulse import Vitals
from sglang_omni.supervision.exits import STACKS_S

_KILLED = -int(signal.SIGKILL)
# How long a shutdown waits for a host's word that it has killed a process.
_CONFIRM_S = 2.0


class RemoteProcess:
    """A process on a host that has joined. See ``LaunchedProcess``."""

    def __init__(self, name: str, node: str, on_kill: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.node = node
        self.pid = 0
        self.endpoints: dict[str, str] = {}
        self.ready: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.host_lost = False
        self.killed = False
        self.with_stacks = False
        self.state = ""
        self.vitals = Vitals(through_host=True)
        self._on_kill = on_kill
        self._exit_text = ""

    def kill(self, *, stacks: bool = False) -> None:
        """See ``LaunchedProcess``. If its host does not confirm it in two seconds, it counts as ended."""
        if self.exited.done() or self.killed:
            return
        self.killed = True
        self.with_stacks = stacks
        self._on_kill()
        confirm_s = _CONFIRM_S + (STACKS_S if stacks else 0.0)
        asyncio.get_running_loop().call_later(confirm_s, self._end, _KILLED, "was killed, unconfirmed", None)

    def describe_exit(self) -> str:
        """See ``LaunchedProcess``."""
        return self._exit_text

    def update(self, report: ProcessReport) -> None:
        """Take its host's report on it."""
        if self.exited.done():
            return
        self.pid = report.pid
        if report.status is not None:
            self._end(report.status, report.exit_text, report.failure)
        elif report.ready and not self.ready.done():
            self.endpoints = report.endpoints
            self.ready.set_result(None)
        if report.pulse is not None:
            self.state = report.state
            self.vitals.hear(report.pulse, report.silent_s)

    def lose(self, reason: str) -> None:
        """Its host is gone, and so is it: ``host 'b' was not heard of for 10 s``."""
        if not self.exited.done():
            self.host_lost = True
            self.exited.set_result(_KILLED)
            self._exit_text = f"was lost: {reason}"
            fail_ready(self.ready, ended_early(self.name, f"was lost ({reason})", None))

    def _end(self, status: int, exit_text: str, failure: str | None) -> None:
        if self.exited.done():
            return
        self._exit_text = f"on host {self.node!r} {exit_text}"
        self.exited.set_result(status)
        text = f"Host {self.node!r}: {failure or f'process {self.name!r} {exit_text}'}"
        fail_ready(self.ready, ProcessFailure(text))


@dataclass
class HostMember:
    """A node, and the host that has joined as it.

    Attributes:
        name: The node's name.
        session: The session of its host, which has joined or is about to; None if there is none.
        address: The host's address for other hosts.
        last_seen: When it was heard of last, by the loop's clock.
        unreachable_since: Since when it has had no connection; None while it has one.
        joined: Set while a host is in that has planned the run, and so reports.
    """

    name: str
    session: bytes | None = None
    address: str = ""
    last_seen: float = 0.0
    unreachable_since: float | None = None
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    _launches: dict[int, list[RemoteProcess]] = field(default_factory=dict)

    def admit(self, session: bytes, address: str, now: float) -> None:
        """Let a host in, after the one before has been lost."""
        self.session, self.address, self.last_seen, self.unreachable_since = session, address, now, None

    def launch(self, number: int, names: list[str], on_kill: Callable[[], None]) -> list[RemoteProcess]:
        """Processes for the host to start. Without a host they are lost at once."""
        processes = [RemoteProcess(name, self.name, on_kill) for name in names]
        if self.joined.is_set():
            self._launches[number] = processes
        else:
            for process in processes:
                process.lose(f"host {self.name!r} has left")
        return processes

    def wanted(self) -> WantedMessage:
        """What must run on the host."""
        return WantedMessage(
            launches=[
                Launch(
                    number=number,
                    processes=[process.name for process in processes],
                    killed=[process.name for process in processes if process.killed],
                    with_stacks=[process.name for process in processes if process.with_stacks],
                )
                for number, processes in self._launches.items()
            ]
        )

    def take(self, report: ReportMessage) -> None:
        """Take the host's report. Launches that have ended as a whole are forgotten."""
        for of_process in report.processes:
            for process in self._launches.get(of_process.launch, ()):
                if process.name == of_process.name:
                    process.update(of_process)
        self._launches = {
            number: processes
            for number, processes in self._launches.items()
            if not all(process.exited.done() for process in processes)
        }

    def lose(self, reason: str) -> None:
        """Note that the host is gone, and with it all its processes."""
        self.session = None
        self.joined.clear()
        launches, self._launches = self._launches, {}
        for processes in launches.values():
            for process in processes:
                process.lose(reason)
