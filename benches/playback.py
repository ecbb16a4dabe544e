"""``make bench-playback``: what listeners hear of one, eight and sixteen spoken answers at once.

Each schedule policy has a server of its own, and they take turns round by round. speech-chat has real models.
Qwen3-Omni is a random one whose codec makes about fifteen times real time on one quiet core: eight listeners
are near what two cores can serve, and sixteen are more.

python benches/playback.py [--pipelines qwen3-omni] [--requests 1 8 16] [--apart 0 0.5] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from measure import conditions, progress

from sglang_omni.client import Client, GenerateRequest, SamplingParams
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.config.schema.load import save_config
from sglang_omni.demo.servers import servers
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.scheduling.playback import Playback

POLICIES = ("fcfs", "deadline")
PIPELINES = ("speech-chat", "qwen3-omni")
# Stages that speak, by pipeline.
SPEAKING = {"speech-chat": ("speak", "transcribe"), "qwen3-omni": ("code2wav",)}
TOPICS = (
    *("Rome", "tea", "the bicycle", "Paris", "writing", "the piano", "maps", "bread"),
    *("chess", "clocks", "coffee", "glass", "paper", "silk", "salt", "sails"),
)
HEADINGS = (
    *("pipeline", "requests", "apart", "policy", "underrun, all", "worst listener", "listeners run dry"),
    *("first sound", "last first sound", "x real time"),
)


@dataclass
class Heard:
    """One round: seconds, numbers of listeners, and seconds of sound a second."""

    underrun_s: float
    worst_underrun_s: float
    run_dry: float
    first_sound_s: float
    last_first_sound_s: float
    times_real_time: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--apart", nargs="+", type=float, default=[0.0, 0.5], help="seconds between requests")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer (default: %(default)s)")
    parser.add_argument("--codec-dim", type=int, default=384, help="of Qwen3-Omni (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of them (default: %(default)s)")
    args = parser.parse_args(argv)
    began, rows = conditions(), []
    for pipeline in args.pipelines:
        with running(pipeline, args.codec_dim) as urls:
            rows += measured(pipeline, urls, args)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(f"\nbegan: {began}\nended: {conditions()}")
    return 0


@contextlib.contextmanager
def running(pipeline: str, codec_dim: int) -> Iterator[dict[str, str]]:
    """The URL of a server of each policy."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        urls = {}
        for policy in POLICIES:
            progress(f"{pipeline}, {policy}: starting its processes")
            file = Path(folder) / f"{policy}.yaml"
            save_config(config(pipeline, policy, Path(folder) / "checkpoint", codec_dim), file)
            # What the servers say while they start is no part of the table.
            with contextlib.redirect_stdout(sys.stderr):
                urls[policy] = stack.enter_context(servers(0, ["--config", str(file)], replicas=1))
        yield urls


def config(pipeline: str, policy: str, checkpoint: Path, codec_dim: int) -> PipelineConfig:
    spoken = {stage: {"schedule_policy": policy} for stage in SPEAKING[pipeline]}
    if pipeline == "speech-chat":
        return SpeechChatPipelineConfig(runtime_overrides=spoken)
    make_tiny_checkpoint(checkpoint, 0, TinyShape(code_groups=16, codec_dim=codec_dim))
    own = {stage: {"num_threads": 1, "engine": "omni"} for stage in ("thinker", "talker")}
    own["code2wav"] = {"num_threads": 1, **spoken["code2wav"]}
    return Qwen3OmniPipelineConfig(model_path=str(checkpoint), runtime_overrides=own)


def measured(pipeline: str, urls: dict[str, str], args: argparse.Namespace) -> list[list[str]]:
    cases = [(n, apart) for n in args.requests for apart in (args.apart if n > 1 else [0.0])]
    heard: dict[tuple[int, float, str], list[Heard]] = {}
    for number in range(args.rounds + 1):  # the first warms up
        progress(f"{pipeline}: round {number} of {args.rounds}")
        for requests, apart in cases:
            for policy in POLICIES if number % 2 else reversed(POLICIES):
                one = asyncio.run(listen(pipeline, urls[policy], requests, apart, args.tokens))
                if number:
                    heard.setdefault((requests, apart, policy), []).append(one)
    return [row(pipeline, *case, rounds) for case, rounds in heard.items()]


def row(pipeline: str, requests: int, apart: float, policy: str, rounds: list[Heard]) -> list[str]:
    medians = [statistics.median(values) for values in zip(*map(astuple, rounds), strict=True)]
    shown = [
        f"{value:.2f} s" if field.name.endswith("_s") else f"{value:.3g}"
        for field, value in zip(fields(Heard), medians, strict=True)
    ]
    return [pipeline, str(requests), f"{apart:g} s", policy, *shown]


async def listen(pipeline: str, url: str, requests: int, apart: float, tokens: int) -> Heard:
    """Streams some spoken answers, whose requests come ``apart`` seconds after one another."""
    async with Client(base_url=url) as client:
        began = time.monotonic()
        listeners = []
        for number in range(requests):
            listeners.append(asyncio.create_task(ask(pipeline, client, number, tokens)))
            await asyncio.sleep(apart)
        played = await asyncio.gather(*listeners)
        seconds = time.monotonic() - began
    underruns = [playback.underrun_s for playback in played]
    firsts = [playback.first_sound or 0.0 for playback in played]
    sound = sum(playback.seconds for playback in played)
    return Heard(
        underrun_s=sum(underruns),
        worst_underrun_s=max(underruns),
        run_dry=sum(seconds > 0.01 for seconds in underruns),
        first_sound_s=statistics.median(firsts),
        last_first_sound_s=max(firsts),
        times_real_time=sound / seconds,
    )


async def ask(pipeline: str, client: Client, number: int, tokens: int) -> Playback:
    """Plays one answer of exactly ``tokens`` tokens, with Qwen3-Omni of as many frames of speech at most."""
    talker = {"talker": {"temperature": 0.0, "max_new_tokens": tokens + 1}}
    request = GenerateRequest(
        messages=[{"role": "user", "content": f"Tell me the history of {TOPICS[number % len(TOPICS)]}."}],
        output_modalities=["text", "audio"],
        sampling=SamplingParams(temperature=0, ignore_eos=True),
        max_tokens=tokens,
        stage_params=talker if pipeline == "qwen3-omni" else None,
    )
    playback = Playback(time.monotonic())
    async for chunk in client.completion_stream(request, audio_format="pcm16"):
        playback.feed(time.monotonic(), chunk.audio_seconds)
    if playback.first_sound is None:
        raise RuntimeError(f"{request.messages}: the answer has no sound")
    return playback


if __name__ == "__main__":
    sys.exit(main())
