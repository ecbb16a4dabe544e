"""One process of a pipeline as its parent sees it: started, ready, ended. Its own side is ``reporting.py``.

It is started by ``subprocess`` or a ``ForkServer``, and not by ``multiprocessing``: it has an environment of
its own, instead of the parent's patched for a moment, and a parent that exits in any way does not wait for
it. Like a child of ``multiprocessing`` it has the parent's ``sys.path`` and ``__main__``.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from multiprocessing import spawn
from pathlib import Path
from typing import IO, Any

from sglang_omni.pipeline.processes.fork_server import ForkedProcess, memory_file, start_python
from sglang_omni.pipeline.processes.pulse import Pulse, Vitals
from sglang_omni.supervision.exits import STACKS_S, describe_exit

# Without sys.path the child cannot import this package, which it needs to read the rest.
_BOOTSTRAP = (
    "import pickle, sys; source = open({spec}, 'rb'); sys.path[:] = pickle.load(source); "
    "from {module} import main; main(source, {report})"
)
_STAGES = "sglang_omni.pipeline.processes.child"
_REPORT_CHUNK = 1 << 16
# States in /proc that keep a process from answering, in words.
_STATES = {"T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger", "D": "waits inside the kernel"}

# Starts a process that runs a ``main``, given its whole environment and that function's two descriptors.
StartProcess = Callable[[Mapping[str, str], int, int], "subprocess.Popen[bytes] | ForkedProcess"]


class ProcessFailure(RuntimeError):
    """A process ended before its stages were ready. The text holds its traceback, if it left one.

    Attributes:
        reason: The text without the traceback, which the process has also written to stderr.
    """

    def __init__(self, reason: str, traceback: str | None = None) -> None:
        super().__init__(f"{reason}\n{traceback.rstrip()}" if traceback else reason)
        self.reason = reason


def fail_ready(ready: asyncio.Future[None], failure: ProcessFailure) -> None:
    """End the wait for a process to be ready with a failure; does nothing if it was ready."""
    if not ready.done():
        ready.set_exception(failure)
        ready.exception()  # counts as retrieved: the exit is handled even if nothing awaits this


def ended_early(name: str, exit_text: str, traceback: str | None) -> ProcessFailure:
    """The failure of a process that ended before it was ready, with the traceback that it left."""
    # With a traceback, the text ends with its error, which needs no more words.
    early = "" if traceback else " before it was ready"
    return ProcessFailure(f"Process {name!r} {exit_text}{early}", traceback)


def exited_with(status: int, traceback: str | None) -> str:
    """How a process ended by itself: ``exited with status 1: KeyError: 3``."""
    return describe_exit(status) + (f": {_error_in(traceback)}" if traceback else "")


def _error_in(traceback: str) -> str:
    """The error at the end of a traceback; its text may have several lines."""
    *_, last = traceback.rpartition('\n  File "')
    lines = last.strip().splitlines()
    begins = next((at for at, line in enumerate(lines) if at > 0 and not line.startswith(" ")), -1)
    return "\n".join(lines[begins:])


class ReportingProcess:
    """A process that reports on itself; see ``LaunchedProcess``.

    Attributes:
        failure: The traceback that the process reported, or None.
    """

    def __init__(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.ready: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.endpoints: dict[str, str] = {}
        self.host_lost = False
        self.vitals = Vitals()
        self.failure: str | None = None

    def take(self, report: dict[str, Any]) -> None:
        """Take a report of the process's run, or the failure with which it ended."""
        self.failure = report.get("failure", self.failure)
        self.endpoints = report.get("endpoints", self.endpoints)
        if report.get("ready") and not self.ready.done():
            self.ready.set_result(None)
            self.vitals.hear(Pulse())
        elif "pulse" in report:
            self.vitals.hear(Pulse(**report["pulse"]))


class ChildProcess(ReportingProcess):
    """A running child process, in which ``main`` of a module runs with ``spec``; see ``reporting.py``.

    The running event loop watches it: the kernel makes a process's pidfd readable the moment the process
    ends, so nothing polls. The child asks to be killed when the *thread* that started it ends, so that
    thread must live as long as the pipeline.
    """

    def __init__(
        self, name: str, spec: object, environment: Mapping[str, str], start: StartProcess | None = None
    ) -> None:
        """Start the process.

        Args:
            name: The name used in errors.
            spec: What ``main`` receives; anything picklable.
            environment: The child's whole environment.
            start: How it is started; None: as a new Python, with the ``main`` of stages' processes.

        Raises:
            ValueError: ``spec`` cannot be pickled.
            OSError: There is no descriptor, process or memory left for it. No part of it remains.
        """
        super().__init__(name)
        loop = self._loop = asyncio.get_running_loop()
        self._unread = b""
        with ExitStack() as kept, ExitStack() as passed_on:
            spec_fd = passed_on.enter_context(_spec_file(name, spec)).fileno()
            self._report_fd, child_report_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            kept.callback(os.close, self._report_fd)
            passed_on.callback(os.close, child_report_fd)
            self._process = (start or new_python())(environment, spec_fd, child_report_fd)
            kept.callback(_end, self._process)
            self._pidfd = os.pidfd_open(self._process.pid)
            kept.pop_all()
        loop.add_reader(self._report_fd, self._read_reports)
        loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def state(self) -> str:
        """See ``LaunchedProcess``."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ""  # it has ended, or there is no descriptor to ask with
        return _STATES.get(stat.rpartition(")")[2].split()[0], "")

    def kill(self, *, stacks: bool = False) -> None:
        """End the process, unless it has ended; never another one that has its id by now.

        Args:
            stacks: Have it write its threads' stacks to stderr first, for which it has a second.
        """
        if self.exited.done():
            return
        if stacks:
            signal.pidfd_send_signal(self._pidfd, signal.SIGQUIT)
            self._loop.call_later(STACKS_S, self.kill)
        else:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def describe_exit(self) -> str:
        """How it ended: ``was killed by SIGKILL (exit status -9)``, ``exited with status 1: KeyError: 3``."""
        status = self.exited.result()
        return exited_with(status, self.failure if status >= 0 else None)

    def _read_reports(self) -> bool:
        """Handle the child's new reports. Returns whether there were any."""
        try:
            chunk = os.read(self._report_fd, _REPORT_CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._report_fd)
            return False
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            self.take(json.loads(line))
        return True

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._report_fd)
        while self._read_reports():
            pass
        os.close(self._report_fd)
        os.close(self._pidfd)
        self.exited.set_result(self._process.wait())
        exit_text = self.describe_exit()
        if self.exited.result() == -signal.SIGKILL:
            exit_text += ", as the kernel does when memory runs out (dmesg tells),"
        fail_ready(self.ready, ended_early(self.name, exit_text, self.failure))


def _spec_file(name: str, spec: object) -> AbstractContextManager[IO[bytes]]:
    """A memory file with all the child reads, so that no write to a slow child can block the loop."""
    try:
        pickled = pickle.dumps(spec)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise ValueError(
            f"process {name!r}: its stages' configuration cannot be sent to another process: {exc}. "
            "factory_args may hold plain data and importable classes, not functions defined inside functions "
            "or open resources"
        ) from exc
    # A child imports the script again only if the spec refers to it: the script's own imports, e.g. of a
    # whole web server, cost time.
    preparation = spawn.get_preparation_data(name) if b"__main__" in pickled else {}
    main = {
        key: preparation[key] for key in ("init_main_from_name", "init_main_from_path") if key in preparation
    }
    return memory_file(sys.path, main, pickled)


def new_python(module: str = _STAGES, descriptors: Sequence[int] = ()) -> StartProcess:
    """Starts a new Python that runs ``main`` of a module.

    Args:
        module: The module.
        descriptors: Those of this process that the new one has too, under the same numbers.
    """

    def start(environment: Mapping[str, str], spec_fd: int, report_fd: int) -> subprocess.Popen[bytes]:
        code = _BOOTSTRAP.format(spec=spec_fd, report=report_fd, module=module)
        return start_python(code, environment, (spec_fd, report_fd, *descriptors))

    return start


def _end(process: subprocess.Popen[bytes] | ForkedProcess) -> None:
    """End a process that cannot be watched."""
    process.kill()
    process.wait()
