"""``make parity``: served answers against transformers' own, over seeds, shapes, engines and kinds of input.

Each conversation is asked alone, and again while all the others are asked at the same time. Tokens and codes
must be equal; the waveform, decoded in the reference's pieces, to 1e-5.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from qwen3_omni_cases import Case, all_cases, differences
from qwen3_omni_oracle import SHAPES, Oracle, OracleAnswer
from tqdm import tqdm

from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import OmniRequest

ENGINES = ("omni", "sglang")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="checkpoints a shape (default: %(default)s)")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--chunked-prefill-size",
        type=int,
        default=16,
        help="tokens of one step (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    cases = all_cases()
    total = len(args.shapes) * args.seeds * len(args.engines) * len(cases) * 2
    wrong: list[str] = []
    table: Counter[tuple[str, str, str]] = Counter()
    began = time.monotonic()
    with tqdm(total=total, unit="answer", disable=not sys.stderr.isatty()) as bar:
        for shape in args.shapes:
            for seed in range(args.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    oracle = Oracle.make(Path(folder), seed=seed, shape=shape)
                    asked = [case.spoken_by(oracle) for case in cases]
                    for engine in args.engines:
                        bar.set_description(f"{shape} {seed} {engine}")
                        found = asyncio.run(answers(oracle, asked, engine, args.chunked_prefill_size, bar))
                        for case, way, differs in found:
                            table[case.name, engine, "right" if not differs else "wrong"] += 1
                            if differs:
                                wrong.append(
                                    f"{shape} {seed} {engine} {case.name} {way}: {', '.join(differs)}"
                                )
    show(table, cases, args.engines)
    print(f"{total - len(wrong)} of {total} answers equal transformers', in {time.monotonic() - began:.0f} s")
    print("\n".join(wrong))
    return 1 if wrong else 0


async def answers(
    oracle: Oracle,
    asked: Sequence[tuple[Case, OracleAnswer]],
    engine: str,
    chunked_prefill_size: int,
    bar: tqdm[None],
) -> list[tuple[Case, str, list[str]]]:
    """What each answer has wrong, alone and among the others."""
    own = {"engine": engine, "chunked_prefill_size": chunked_prefill_size, "num_threads": 1}
    config = Qwen3OmniPipelineConfig(
        model_path=str(oracle.path), runtime_overrides={"thinker": own, "talker": own}
    )
    coordinator, stages = compile_pipeline(config)
    runner = PipelineRunner(coordinator, stages)
    await runner.start()
    try:
        found = []
        for case, right in asked:
            found.append((case, "alone", await ask(coordinator, case, right, "alone")))
            bar.update()
        together = await asyncio.gather(*(ask(coordinator, case, right, "together") for case, right in asked))
        bar.update(len(asked))
        return [
            *found,
            *((case, "together", wrong) for (case, _), wrong in zip(asked, together, strict=True)),
        ]
    finally:
        await runner.stop()


async def ask(coordinator: Coordinator, case: Case, right: OracleAnswer, way: str) -> list[str]:
    params = {**case.params, "max_new_tokens": case.max_tokens, "voice": case.speaker}
    if case.use_audio_in_video:
        params["use_audio_in_video"] = True
    request = OmniRequest(
        {"messages": case.messages}, params, {"task": "chat", "output_modalities": ["text", "audio"]}
    )
    return differences(right, await coordinator.submit(f"{case.name} {way}", request))


def show(table: Counter[tuple[str, str, str]], cases: Sequence[Case], engines: Sequence[str]) -> None:
    print(f"{'':<22}" + "".join(f"{engine:>12}" for engine in engines))
    for case in cases:
        counts = []
        for engine in engines:
            right, wrong = table[case.name, engine, "right"], table[case.name, engine, "wrong"]
            counts.append(f"{right}/{right + wrong}")
        print(f"{case.name:<22}" + "".join(f"{count:>12}" for count in counts))


if __name__ == "__main__":
    sys.exit(main())
