"""A pipeline of your own: three functions, each in a process of its own, and a client.

python examples/three_stages.py "to be or not to be"
"""

import asyncio
import sys
from collections import Counter

from sglang_omni import Client, PipelineConfig, StageConfig
from sglang_omni.client import GenerateRequest
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner


# A factory runs once, in its stage's process, where it may load a model. Its function is called for each
# request; the result is `payload.data` in the next stage.
def split_words():
    return lambda payload: payload.request.inputs["prompt"].split()


def count_words():
    return lambda payload: dict(Counter(payload.data))


def format_top(top):
    return lambda payload: {"text": ", ".join(f"{w} {n}" for w, n in Counter(payload.data).most_common(top))}


HERE = __name__
config = PipelineConfig(
    model_path="none",
    stages=[
        StageConfig(name="split", process="a", factory=f"{HERE}.split_words", next="count"),
        StageConfig(name="count", process="b", factory=f"{HERE}.count_words", next="top"),
        StageConfig(
            name="top", process="c", factory=f"{HERE}.format_top", factory_args={"top": 3}, terminal=True
        ),
    ],
)


async def main(text: str) -> str:
    async with MultiProcessPipelineRunner(config) as runner:
        return (await Client(runner.coordinator).completion(GenerateRequest(prompt=text))).text


if __name__ == "__main__":
    print(asyncio.run(main(" ".join(sys.argv[1:]) or "to be or not to be")))
