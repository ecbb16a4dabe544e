"""The life of a child process that reports to its parent. ``process.ChildProcess`` is its parent's side."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from multiprocessing import spawn
from types import FrameType
from typing import Any, BinaryIO, Protocol

from sglang_omni.pipeline.processes import inside
from sglang_omni.supervision.exits import write_stacks_on_sigquit
from sglang_omni.supervision.parent import end_with_parent

# The end of a traceback says why. A report must fit into its pipe even if nothing is read.
LONGEST_TRACEBACK = 32_000


class ChildSpec(Protocol):
    """What every spec has."""

    @property
    def process_name(self) -> str: ...

    @property
    def parent_pid(self) -> int: ...

    @property
    def log_level(self) -> int: ...


def run_and_report(
    source: BinaryIO,
    report_fd: int,
    run: Callable[[Any], AsyncIterator[dict[str, object]]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Run a process from its first line to its end.

    Args:
        source: Holds pickles of what ``multiprocessing.spawn.prepare`` needs for ``__main__``, and of the
            pickled spec.
        report_fd: Takes JSON lines without blocking: the reports of ``run``, and ``{"failure": traceback}``.
        run: Does the work of a spec. Yields ``{"ready": True}`` once it is up, and from then on, every
            second, the fields of a ``Pulse`` as ``{"pulse": ...}``.
        loop_factory: Makes the event loop.
    """
    # A terminal's Ctrl-C or hang-up and a service manager's SIGTERM reach every process of the group, but the
    # parent decides when to end: it lets requests finish first. Programs that a stage starts inherit SIG_IGN,
    # but no handlers. SIGINT has been blocked since before this process began.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    write_stacks_on_sigquit()
    os.set_inheritable(report_fd, False)
    inside.inside_child = True
    status = 1
    try:
        with source:
            spawn.prepare(pickle.load(source))
            spec: ChildSpec = pickle.loads(pickle.load(source))
        if not end_with_parent(spec.parent_pid, signal.SIGKILL):
            os._exit(1)
        multiprocessing.current_process().name = spec.process_name
        configure_logging(spec)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_report_all(run(spec), report_fd))
        status = 0
    except BaseException:  # noqa: BLE001  reported to the parent, as sys.exit() is
        text = traceback.format_exc()
        logging.getLogger(__name__).error("The process ends with an error\n%s", text)
        os.set_blocking(report_fd, True)  # however many heartbeats are still unread
        _report(report_fd, failure=text[-LONGEST_TRACEBACK:])
    finally:
        # At once: a thread that a stage left behind must not hold up a shutdown, and taking a loaded model
        # apart object by object takes seconds that the kernel does not need.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _leave_it_to_the_parent(number: int, frame: FrameType | None) -> None:
    pass


async def _report_all(reports: AsyncIterator[dict[str, object]], report_fd: int) -> None:
    async for report in reports:
        try:
            _report(report_fd, **report)
        except BlockingIOError:
            pass  # the parent has read nothing for minutes; the next heartbeat says the same


def configure_logging(spec: ChildSpec) -> None:
    """Have the process's root logger write to stderr, its name in every line."""
    logging.basicConfig(
        level=spec.log_level,
        format=f"%(asctime)s %(levelname)s [{spec.process_name}] %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _report(report_fd: int, **report: object) -> None:
    os.write(report_fd, json.dumps(report).encode() + b"\n")
