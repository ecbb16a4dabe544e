"""The legacy form of a config: executors and `get_next`, with the whole pipeline in the calling process.

Three stages; numbers below zero leave the pipeline early, after the second.

python examples/legacy_form.py
"""

import asyncio

from sglang_omni.config import ExecutorConfig, PipelineConfig, PipelineRunner, StageConfig, compile_pipeline
from sglang_omni.executors import EngineExecutor, FusedExecutor, PreprocessingExecutor


class SquaringEngine:
    """Stands for a model's engine: accepts requests and returns their results."""

    def __init__(self):
        self.inputs = {}

    async def add_request(self, request_id, data):
        self.inputs[request_id] = data

    async def get_result(self, request_id):
        return self.inputs.pop(request_id) ** 2

    async def abort(self, request_id):
        self.inputs.pop(request_id, None)


def create_shift(by):
    return PreprocessingExecutor(lambda payload: {"value": payload.data["raw_inputs"] + by})


def create_square():
    def store(payload, result):
        return {"value": result if payload.data["value"] >= 0 else -result}

    return EngineExecutor(SquaringEngine(), lambda payload: payload.data["value"], store)


def create_describe():
    def halve(payload):
        return {"value": payload.data["value"] / 2}

    def describe(payload):
        return {"value": payload.data["value"], "text": f"the half is {payload.data['value']:g}"}

    return FusedExecutor([halve, describe])


def after_shift(request_id, output):
    return "square"


def after_square(request_id, output):
    return "describe" if output.data["value"] >= 0 else None


def after_describe(request_id, output):
    return None


def stage(name, **args):
    return StageConfig(
        name=name,
        executor=ExecutorConfig(factory=f"{__name__}.create_{name}", args=args),
        get_next=f"{__name__}.after_{name}",
    )


async def main(numbers):
    config = PipelineConfig(
        entry_stage="shift", stages=[stage("shift", by=-5), stage("square"), stage("describe")]
    )
    coordinator, stages = compile_pipeline(config)
    runner = PipelineRunner(coordinator, stages)
    await runner.start()
    try:
        return {n: await coordinator.submit(f"request-{n}", n) for n in numbers}
    finally:
        await runner.stop()


if __name__ == "__main__":
    for number, result in asyncio.run(main((1, 9))).items():
        print(number, "->", result)
