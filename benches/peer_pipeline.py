"""The peer's pipeline on the work of ``pipeline.py``, by its public functions, in its environment."""

from __future__ import annotations

import asyncio
from functools import partial

from measure import Samples
from peer import answer
from three_stages import PIPELINES, Load, streaming, three_stages

from sglang_omni.config.schema import CommConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner

MESSAGES = "sglang_omni.scheduling.message"


def make(
    name: str, process: str, function: str, args: dict[str, object] | None = None, **fields: object
) -> StageConfig:
    given = {} if args is None else {"factory": args}
    path = f"three_stages.{function}"
    return StageConfig(name=name, process=process, factory_path=path, **given, **fields)


async def main() -> None:
    running: list[MultiProcessPipelineRunner] = []

    async def open_pipeline(name: str) -> Samples:
        if running:
            await running.pop().stop()
        linked = partial(make, comm=CommConfig(slot_size_mb=64, credits=4))
        requests = name in PIPELINES
        stages = three_stages(linked, *PIPELINES[name][:2]) if requests else streaming(make, MESSAGES)
        runner = MultiProcessPipelineRunner(PipelineConfig(model_path="none", stages=stages))
        await runner.start()
        running.append(runner)
        cases.update(load_cases(runner))
        return {}

    def load_cases(runner: MultiProcessPipelineRunner) -> dict[str, object]:
        load = Load(runner.coordinator)
        return {case.__name__: case for case in (load.latency, load.rate, load.hop, load.chunk_rate)}

    cases = {"open_pipeline": open_pipeline}
    await answer(cases)
    for runner in running:
        await runner.stop()


if __name__ == "__main__":
    asyncio.run(main())
