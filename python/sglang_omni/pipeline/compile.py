"""A whole pipeline inside the calling process, for notebooks, tests and small programs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from sglang_omni.config.factories.factory_args import apply_env_defaults
from sglang_omni.config.plan.edges import check_inputs, check_terminals, plan_edges
from sglang_omni.config.plan.instances import stage_instances
from sglang_omni.config.plan.placement import build_stage_placement_plan
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.coordinator.build import build_coordinator
from sglang_omni.pipeline.processes.plan import plan_stage_launch
from sglang_omni.pipeline.stage.build import build_stage
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.runtime import Stage


def compile_pipeline(config: PipelineConfig) -> tuple[Coordinator, list[Stage]]:
    """Build a pipeline's coordinator and stages in this process, for a ``PipelineRunner``.

    Both forms of config work. All stages share the process, whatever ``process`` and ``node`` say, and hand
    over payloads as objects; a stage on a GPU still gets that GPU. ``edge_relays`` and ``endpoints`` have no
    effect here, and ``relay`` only on payloads that fan out to several stages. ``env_defaults`` are set in
    this process unless they are set already; libraries that are already imported may have read the old
    values.

    Raises:
        ValueError: The config breaks a rule of its placement, splits or replicates a stage, waits for a stage
            that does not send, or has a terminal stage that no request reaches.
        ImportError: A dotted path leads nowhere.
        Exception: The error of a stage's factory.
    """
    split = next((stage for stage in config.stages if stage.tp_size > 1), None)
    if split is not None:
        raise ValueError(
            f"stage {split.name!r}: tp_size={split.tp_size} needs a process for each rank; run the pipeline "
            "with MultiProcessPipelineRunner, or set tp_size=1"
        )
    replicated = next((stage for stage in config.stages if stage.is_replicated), None)
    if replicated is not None:
        raise ValueError(
            f"stage {replicated.name!r}: its replicas need processes of their own; run the pipeline with "
            "MultiProcessPipelineRunner, or set num_replicas=1"
        )
    check_inputs(config)
    check_terminals(config)
    build_stage_placement_plan(config)
    apply_env_defaults(config.env_defaults)
    # Sockets of one process need no files; the name keeps this pipeline apart from others in it.
    run = f"inproc://{uuid.uuid4().hex}"
    endpoints = {
        key: f"{run}/{key}" for key in ("completion", "abort", *(f"stage_{s.name}" for s in config.stages))
    }
    coordinator = build_coordinator(config, endpoints)
    dispatcher = LocalStageDispatcher()
    edges = plan_edges(config, {stage.name: "" for stage in config.stages})
    stages = [
        build_stage(plan_stage_launch(instance, config, endpoints, edges, all_gpus=True), config, dispatcher)
        for instance in stage_instances(config)
    ]
    dispatcher.register_many(stages)
    for stage in stages:
        coordinator.register_stage(stage.name, endpoints[f"stage_{stage.name}"])
    return coordinator, stages


class PipelineRunner:
    """Runs the coordinator and stages of ``compile_pipeline`` in the running event loop.

    A stage that crashes is not restarted: every request fails, and ``wait`` raises the reason. Also an
    asynchronous context manager: started on entry, stopped on exit.
    """

    def __init__(self, coordinator: Coordinator, stages: Iterable[Stage]) -> None:
        self.coordinator = coordinator
        self.stages = list(stages)
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the coordinator and all stages.

        Raises:
            RuntimeError: It is running already.
        """
        if self._running:
            raise RuntimeError("the pipeline is running already")
        await self.coordinator.start()
        try:
            for stage in self.stages:
                await stage.start()
        except BaseException:
            for stage in self.stages:
                await stage.stop()
            await self.coordinator.stop()
            raise
        for stage in self.stages:
            running = asyncio.create_task(stage.run(), name=f"stage {stage.name}")
            running.add_done_callback(self._fail_with)
            self._running.append(running)

    async def wait(self) -> None:
        """Return when all stages have ended.

        Raises:
            RuntimeError: It is not running.
            Exception: The error of a stage that failed.
        """
        self._require_running()
        done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def run(self) -> None:
        """``start``, then ``wait``."""
        await self.start()
        await self.wait()

    async def stop(self) -> None:
        """Have all stages leave and close the coordinator.

        Raises:
            RuntimeError: It is not running.
        """
        self._require_running()
        running, self._running = self._running, []
        for task in running:
            task.cancel()
        # The requests of a stage that failed know of it, and `wait` raises it.
        await asyncio.gather(*running, return_exceptions=True)
        await self.coordinator.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _fail_with(self, stage: asyncio.Task[None]) -> None:
        # Stages are not restarted here, and a pipeline without one of its stages answers no request.
        if not stage.cancelled() and (error := stage.exception()) is not None:
            self.coordinator.fail_all(f"{stage.get_name()} ended: {error}")

    def _require_running(self) -> None:
        if not self._running:
            raise RuntimeError("the pipeline is not running: await start() first")
