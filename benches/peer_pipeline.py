"""The peer's pipeline on the work of ``pipeline.py``, by its public functions, in its environment."""

from __future__ import annotations

import asyncio

from measure import Samples
from peer import answer
from three_stages import PIPELINES, Load

from sglang_omni.config.schema import CommConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner

MESSAGES = {"messages": "sglang_omni.scheduling.message"}


def three_stages(processes: tuple[str, str, str], nbytes: int) -> PipelineConfig:
    comm = CommConfig(slot_size_mb=64, credits=4)

    def stage(name: str, process: str, function: str, **fields: object) -> StageConfig:
        path = f"three_stages.{function}"
        return StageConfig(name=name, process=process, factory_path=path, comm=comm, **fields)

    a, b, c = processes
    return PipelineConfig(
        model_path="none",
        stages=[
            stage("one", a, "create_pass", factory={"nbytes": nbytes}, next="two"),
            stage("two", b, "create_pass", next="three"),
            stage("three", c, "create_finish", terminal=True),
        ],
    )


def streaming() -> PipelineConfig:
    one = StageConfig(
        name="one",
        process="a",
        factory_path="three_stages.Chunks",
        factory=MESSAGES,
        next="two",
        stream_to=["two"],
    )
    two = StageConfig(
        name="two",
        process="b",
        factory_path="three_stages.Collect",
        factory=MESSAGES,
        terminal=True,
        can_accept_stream_before_payload=True,
    )
    return PipelineConfig(model_path="none", stages=[one, two])


async def main() -> None:
    running: list[MultiProcessPipelineRunner] = []

    async def open_pipeline(name: str) -> Samples:
        if running:
            await running.pop().stop()
        runner = MultiProcessPipelineRunner(
            three_stages(*PIPELINES[name][:2]) if name in PIPELINES else streaming()
        )
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
