"""Bench: a random Qwen2.5-Omni's answers in text and in speech, beside transformers on the same checkpoint.

    python benches/qwen2_5_omni.py [--tokens 32] [--codes 100] [--rounds 3]

Prints medians in milliseconds, divided by the requests: a token of an answer in text, a code and a second of
its speech (with the text), of one request and of eight at once. transformers computes them one by one, and
eight as a batch, whose speech it decodes one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.config import Qwen25OmniPipelineConfig
from sglang_omni.models.qwen2_5_omni.preprocess import SPEECH_PROMPT
from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.make import make
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.proto import OmniRequest

MESSAGES = [
    {"role": "system", "content": SPEECH_PROMPT},
    {"role": "user", "content": "Tell me about the sea and the sky."},
]


async def ours(path: Path, arguments: argparse.Namespace) -> None:
    coordinator, stages = compile_pipeline(Qwen25OmniPipelineConfig(model_path=str(path)))
    number = 0

    async def ask(count: int, *, spoken: bool) -> None:
        nonlocal number
        params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": arguments.tokens, "ignore_eos": True}
        if spoken:
            params |= {"talker_temperature": 0.0, "talker_max_new_tokens": arguments.codes}
        metadata = {"task": "chat", "output_modalities": ["text", "audio"] if spoken else ["text"]}
        requests = []
        for _ in range(count):
            number += 1
            request = OmniRequest({"messages": MESSAGES}, params, metadata)
            requests.append(coordinator.submit(str(number), request))
        results = await asyncio.gather(*requests)
        for result in results:
            frames = result["decode"]["talker"]["frames"] if spoken else arguments.codes
            assert frames == arguments.codes, f"the speech ended after {frames} codes: take another --codes"

    async with PipelineRunner(coordinator, stages):
        for count in (1, 8):
            text = await timed(lambda: ask(count, spoken=False), arguments.rounds)  # noqa: B023
            speech = await timed(lambda: ask(count, spoken=True), arguments.rounds)  # noqa: B023
            show(f"sgl-omni, {count} at once", text, speech, arguments, count)


async def timed(call: Callable[[], Awaitable[None]], rounds: int) -> float:
    """Median seconds of a call, after one that does not count."""
    await call()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return median(taken)


async def theirs(path: Path, arguments: argparse.Namespace) -> None:
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    processor = Qwen2_5OmniProcessor.from_pretrained(path)
    speech = Qwen25OmniCheckpoint.from_dir(path).require_talker()
    text = processor.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    for count in (1, 8):
        inputs = processor(text=[text] * count, return_tensors="pt")
        # One token of padding: see docs/qwen2.5-omni.md.
        pad = torch.zeros(count, 1, dtype=torch.int64)
        ids = torch.cat((pad, inputs["input_ids"]), 1)
        mask = torch.cat((pad, inputs["attention_mask"]), 1)

        async def ask(*, spoken: bool) -> None:
            model.generate(
                input_ids=ids,  # noqa: B023
                attention_mask=mask,  # noqa: B023
                generation_mode="audio" if spoken else "text",
                thinker_do_sample=False,
                thinker_max_new_tokens=arguments.tokens,
                thinker_min_new_tokens=arguments.tokens,
                talker_do_sample=False,
                talker_max_new_tokens=arguments.codes,
                talker_eos_token_id=list(speech.ends),
            )

        written = await timed(lambda: ask(spoken=False), arguments.rounds)
        spoken = await timed(lambda: ask(spoken=True), arguments.rounds)
        show(f"transformers, {count} at once", written, spoken, arguments, count)


def show(who: str, text: float, speech: float, arguments: argparse.Namespace, count: int) -> None:
    token, code = text / arguments.tokens / count, speech / arguments.codes / count
    print(f"| {who} | {1000 * token:.2f} | {1000 * code:.2f} | {1000 * 50 * code:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--codes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| | ms a token, text | ms a code, text and speech | ms a second of speech |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder) / "tiny", seed=0)
        asyncio.run(ours(path, arguments))
        asyncio.run(theirs(path, arguments))


if __name__ == "__main__":
    main()
