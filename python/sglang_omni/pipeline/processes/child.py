"""A pipeline's process: builds its stages and runs them. Of this room, this file alone runs stages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any, BinaryIO

from sglang_omni.pipeline.processes.pulse import beat_until_done
from sglang_omni.pipeline.processes.reporting import run_and_report
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.pipeline.stage.build import build_scheduler, build_stage
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.transport import open_files
from sglang_omni.scheduling.threads import on_this_gpu, use_gpu
from sglang_omni.supervision.garbage import freeze_loaded

# Returns a process's present numbers: instance -> name -> value.
ReadStats = Callable[[], Mapping[str, Mapping[str, float]]]


def main(source: BinaryIO, report_fd: int) -> None:
    """Run a process from its first line to its end; see ``run_and_report``. The spec is a ``ProcessSpec``."""
    run_and_report(source, report_fd, run_stages, asyncio.new_event_loop)


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
