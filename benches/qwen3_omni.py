"""``make bench-omni``: what Qwen3-Omni's pipeline adds to a model, on a random one of a few megabytes.

For each engine, in real processes through HTTP: when the first sound comes and when the last text token does,
and what eight requests at once cost beside one.

python benches/qwen3_omni.py [--engines omni sglang] [--tokens 96] [--rounds 5]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import progress

from sglang_omni.client import GenerateRequest, SamplingParams, SyncClient
from sglang_omni.config.schema.load import save_config
from sglang_omni.demo.servers import servers
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

ENGINES = ("omni", "sglang")
CONCURRENT = 8
HEADINGS = (
    "engine",
    "answer",
    "first text",
    "first sound",
    "last text",
    "1 request, ms a token",
    f"{CONCURRENT} at once, ms a token",
    "ratio",
)


@dataclass
class Seen:
    """One streamed answer; seconds from its request."""

    first_text: float = 0.0
    last_text: float = 0.0
    first_sound: float = 0.0
    end: float = 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of them (default: %(default)s)")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_tiny_checkpoint(Path(folder) / "checkpoint", seed=0)
        for engine in args.engines:
            progress(f"engine {engine}: starting its processes")
            own = {"engine": engine, "num_threads": 1}
            config = Qwen3OmniPipelineConfig(
                model_path=str(checkpoint),
                runtime_overrides=dict.fromkeys(("thinker", "talker"), own)
                | {"code2wav": {"num_threads": 1}},
            )
            file = Path(folder) / f"{engine}.yaml"
            save_config(config, file)
            # What the servers say while they start is no part of the table.
            with (
                contextlib.redirect_stdout(sys.stderr),
                servers(0, ["--config", str(file)], replicas=1) as url,
            ):
                rows += [
                    [engine, " + ".join(modalities), *measured(url, modalities, args)]
                    for modalities in (["text"], ["text", "audio"])
                ]
    print_table(rows)
    return 0


def measured(url: str, modalities: list[str], args: argparse.Namespace) -> list[str]:
    alone: list[Seen] = []
    together: list[float] = []
    with ThreadPoolExecutor(CONCURRENT) as pool, SyncClient(url) as client:
        for number in range(-1, args.rounds):  # the first warms up
            progress(f"{' + '.join(modalities)}: round {number + 1} of {args.rounds}")
            one = ask(client, number, modalities, args.tokens)
            began = time.monotonic()
            asked = [
                pool.submit(ask, client, 100 + CONCURRENT * number + i, modalities, args.tokens)
                for i in range(CONCURRENT)
            ]
            for answer in asked:
                answer.result()
            if number >= 0:
                alone.append(one)
                together.append(time.monotonic() - began)
    one_token = statistics.median(seen.end for seen in alone) / args.tokens * 1000
    eight_token = statistics.median(together) / args.tokens * 1000
    times = [
        statistics.median(getattr(seen, name) for seen in alone)
        for name in ("first_text", "first_sound", "last_text")
    ]
    return [
        *(f"{seconds * 1000:.0f} ms" if seconds else "-" for seconds in times),
        f"{one_token:.1f}",
        f"{eight_token:.1f}",
        f"{eight_token / one_token:.2f}",
    ]


def ask(client: SyncClient, number: int, modalities: list[str], tokens: int) -> Seen:
    """Streams one answer of exactly ``tokens`` tokens, and about as many frames of speech."""
    talker = {"talker": {"temperature": 0.0, "max_new_tokens": tokens + 1}}
    request = GenerateRequest(
        messages=[{"role": "user", "content": f"Question number {number}: what is the time?"}],
        output_modalities=modalities,
        sampling=SamplingParams(temperature=0, ignore_eos=True),
        max_tokens=tokens,
        stage_params=talker if "audio" in modalities else None,
    )
    seen = Seen()
    began = time.monotonic()
    for chunk in client.completion_stream(request, audio_format="pcm16"):
        now = time.monotonic() - began
        if chunk.text and chunk.finish_reason is None:
            seen.first_text = seen.first_text or now
            seen.last_text = now
        if chunk.audio_b64 and base64.b64decode(chunk.audio_b64):
            seen.first_sound = seen.first_sound or now
    seen.end = time.monotonic() - began
    return seen


def print_table(rows: list[list[Any]]) -> None:
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    sys.exit(main())
