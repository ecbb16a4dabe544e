"""``make bench-text``: tokens a second of both engines on the bundled language model, beside transformers.

transformers' ``generate`` answers one request after another, in the same dtype and with as many threads; the
engines answer 1, 4 and 8 at once. All take turns in one process, and the figures are medians.

python benches/text_engines.py [--dtypes float32 bfloat16] [--tokens 48] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence

import torch
from measure import block, interleaved, progress
from tokenizers import Tokenizer

from sglang_omni.engines.base import Engine
from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.speech_chat.components.smollm2 import ensure_checkpoint

CONCURRENT = (1, 4, 8)
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name three planets.",
    "Tell me a story about a fox.",
    "How is bread made?",
    "Who wrote Hamlet?",
    "What do bees do in winter?",
    "Give me a reason to learn to swim.",
)

_serial = itertools.count()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    parser.add_argument("--tokens", type=int, default=48, help="of each answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of them (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    path = ensure_checkpoint()
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    prompts = [
        tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        for question in QUESTIONS
    ]
    print(f"SmolLM2, {args.tokens} tokens an answer, {args.threads} threads; tokens a second\n")
    print("| dtype | who | 1 request | 4 at once | 8 at once | 8 beside generate |")
    print("| --- | --- | --- | --- | --- | --- |")
    for dtype in args.dtypes:
        progress(f"loading three times in {dtype}")
        cases = {("transformers' generate", 1): _generate(path, dtype, prompts[0], args.tokens)}
        options = EngineOptions(
            dtype=dtype, max_total_tokens=4096, prefix_cache=False, num_threads=args.threads
        )
        for kind in ("omni", "sglang"):
            engine = build_engine(kind, DecoderSpec.from_dir(path), options)
            for count in CONCURRENT:
                cases[kind, count] = _answers(engine, prompts[:count], args.tokens)
        progress(f"measuring in {dtype}")
        blocks = [block(f"{who} {count}", work) for (who, count), work in cases.items()]
        seconds = asyncio.run(interleaved(blocks, args.rounds))
        rates = {case: case[1] * args.tokens / seconds[f"{case[0]} {case[1]}"] for case in cases}
        alone = rates["transformers' generate", 1]
        print(f"| {dtype} | transformers' generate | {alone:.1f} | - | - | 1 x |")
        for kind in ("omni", "sglang"):
            row = " | ".join(f"{rates[kind, count]:.1f}" for count in CONCURRENT)
            print(f"| {dtype} | {kind} | {row} | {rates[kind, 8] / alone:.1f} x |", flush=True)
    return 0


def _generate(path: object, dtype: str, prompt: list[int], tokens: int) -> Callable[[], None]:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    ids = torch.tensor([prompt])

    def run() -> None:
        model.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, repetition_penalty=1.0
        )

    return run


def _answers(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> Callable[[], None]:
    sampling = RequestSampling(temperature=0.0, max_new_tokens=tokens, ignore_eos=True)

    def run() -> None:
        for prompt in prompts:
            engine.add(EngineRequest(str(next(_serial)), prompt, sampling))
        while engine.has_work:
            engine.step()

    return run


if __name__ == "__main__":
    sys.exit(main())
