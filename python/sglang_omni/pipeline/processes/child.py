"""The life of a pipeline's process, which runs nothing else of this room but how it was forked."""

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
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict
from multiprocessing import spawn
from types import FrameType
from typing import Any, BinaryIO

from sglang_omni.pipeline.processes import process
from sglang_omni.pipeline.processes.pulse import beat_until_done
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.pipeline.stage.build import build_scheduler, build_stage
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.transport import open_files
from sglang_omni.scheduling.threads import on_this_gpu, use_gpu
from sglang_omni.supervision.exits import write_stacks_on_sigquit
from sglang_omni.supervision.garbage import freeze_loaded
from sglang_omni.supervision.parent import end_with_parent
from sglang_omni.versions.asyncio import SharedEventLoop

# The end of a traceback says why. A report must fit into its pipe even if nothing is read.
LONGEST_TRACEBACK = 32_000

# Returns a process's present numbers: instance -> name -> value.
ReadStats = Callable[[], Mapping[str, Mapping[str, float]]]


def main(source: BinaryIO, report_fd: int) -> None:
    """Run a process from its first line to its end. ``process.ChildProcess`` starts it.

    Args:
        source: Holds pickles of what ``multiprocessing.spawn.prepare`` needs for ``__main__``, and of a
            pickled ``ProcessSpec``.
        report_fd: Takes JSON lines without blocking: the reports of ``run_stages``, and
            ``{"failure": traceback}``.
    """
    # A terminal's Ctrl-C or hang-up and a service manager's SIGTERM reach every process of the group, but the
    # parent decides when to end: it lets requests finish first. Programs that a stage starts inherit SIG_IGN,
    # but no handlers. SIGINT has been blocked since before this process began.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    write_stacks_on_sigquit()
    os.set_inheritable(report_fd, False)
    process.inside_child = True
    status = 1
    try:
        with source:
            spawn.prepare(pickle.load(source))
            spec: ProcessSpec = pickle.loads(pickle.load(source))
        if not end_with_parent(spec.parent_pid, signal.SIGKILL):
            os._exit(1)
        multiprocessing.current_process().name = spec.process_name
        configure_logging(spec)
        with asyncio.Runner(loop_factory=SharedEventLoop) as runner:
            runner.run(_run_and_report(spec, report_fd))
        status = 0
    except BaseException:  # noqa: BLE001  the parent is told of anything, sys.exit() included
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


async def _run_and_report(spec: ProcessSpec, report_fd: int) -> None:
    async for report in run_stages(spec):
        try:
            _report(report_fd, **report)
        except BlockingIOError:
            pass  # the parent has read nothing for minutes; the next heartbeat says the same


async def run_stages(
    spec: ProcessSpec, beside: Callable[[str, ReadStats], Coroutine[Any, Any, None]] | None = None
) -> AsyncIterator[dict[str, object]]:
    """Build and run the stages until each has been told to leave, or one fails.

    Yields the reports for their parent: once they are up ``{"ready": True}``, with the instances' endpoints
    for other hosts as ``"endpoints"``; from then on, every second, the fields of a ``Pulse`` as
    ``{"pulse": ...}``.

    Args:
        spec: The process.
        beside: Called with the process's name and a way to read its stages' numbers; what it returns runs as
            long as the stages do.

    Raises:
        Exception: Whatever a factory or a stage raises.
    """
    # Its relays' engines listen too.
    open_files.raise_limit()
    use_gpu(next((stage.device_index for stage in spec.stages if stage.device_index is not None), None))
    first = spec.stages[0]
    if first.role == "follower":
        # It has no sockets, relay or requests of its own: its scheduler does the same as rank 0's.
        follower = build_scheduler(first, spec.config)
        freeze_loaded()
        yield {"ready": True}
        work = asyncio.create_task(asyncio.to_thread(on_this_gpu(follower.start)))
        async for pulse in beat_until_done([work]):
            yield {"pulse": asdict(pulse)}
        return
    dispatcher = LocalStageDispatcher()
    stages = [build_stage(launch, spec.config, dispatcher) for launch in spec.stages]
    dispatcher.register_many(stages)
    for stage in stages:
        await stage.start()
    freeze_loaded()
    instances = zip(spec.instances, stages, strict=True)
    yield {
        "ready": True,
        "endpoints": {
            instance: stage.tcp_endpoint for instance, stage in instances if stage.tcp_endpoint is not None
        },
    }
    running = [asyncio.create_task(stage.run(), name=f"stage {stage.name}") for stage in stages]
    companion = None
    if beside is not None:
        companion = asyncio.create_task(
            beside(spec.process_name, lambda: {stage.name: stage.stats() for stage in stages})
        )
    try:
        # Stages of one process share its fate: the first failure ends all of them.
        async for pulse in beat_until_done(running):
            yield {"pulse": asdict(pulse)}
    finally:
        if companion is not None:
            companion.cancel()


def configure_logging(spec: ProcessSpec) -> None:
    """Have the process's root logger write to stderr, its name in every line."""
    logging.basicConfig(
        level=spec.log_level,
        format=f"%(asctime)s %(levelname)s [{spec.process_name}] %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _report(report_fd: int, **report: object) -> None:
    os.write(report_fd, json.dumps(report).encode() + b"\n")
