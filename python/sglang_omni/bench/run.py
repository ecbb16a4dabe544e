"""One run: finds out what is served, warms it up, sends the load and collects what came of it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_omni.bench.client_load import ClientLoad
from sglang_omni.bench.clips import Clips, SpokenClip, backchannel_clip, read_clips, spoken_clips
from sglang_omni.bench.judge.cast import Cast
from sglang_omni.bench.judge.scenarios import SCENARIOS
from sglang_omni.bench.judge.sounds import trimmed
from sglang_omni.bench.judge.support import find_support
from sglang_omni.bench.load import Load, run_load
from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.progress import Progress
from sglang_omni.bench.prompts import BenchPrompts
from sglang_omni.bench.target import Target
from sglang_omni.bench.traffic import Asking, Traffic
from sglang_omni.bench.traffic.realtime import RealtimeTraffic
from sglang_omni.bench.traffic.scenarios import ScenarioTraffic
from sglang_omni.bench.traffic.speech import SpeechTraffic
from sglang_omni.bench.traffic.text import ChatTraffic, CompletionTraffic
from sglang_omni.bench.traffic.transcription import TranscriptionTraffic

# The first number of a request to warm up: beyond those of a run, so what a run asks is in no cache yet.
_WARMUPS = 2**32


@dataclass(frozen=True)
class RunOptions:
    """
    Attributes:
        traffic: The kind of requests.
        model: None for the first one that the server lists.
        clips_path: A WAV file or a folder of them, for traffic that speaks; None for the server's own voice.
        turns: Of each realtime session.
        scenarios: What happens in realtime sessions, by name; ``plain`` alone is measured and not judged.
        snr_db: How much louder a user is than a noise, or another person, in scenarios.
        output_len: The most tokens of an answer of a realtime session.
        more: Fields that each request has besides.
        warmup: Requests that are sent first, one after another, and not measured.
    """

    traffic: str
    model: str | None
    voice: str | None
    prompts: BenchPrompts
    clips_path: Path | None
    turns: int
    scenarios: tuple[str, ...]
    snr_db: float
    output_len: int | None
    more: dict[str, Any]
    load: Load
    warmup: int


@dataclass
class Result:
    """
    Attributes:
        notes: What the server does not support of what was asked for, and why.
        client: What the run cost this process; see ``ClientLoad.done``.
        stopped: True if Ctrl-C ended it.
    """

    model: str
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    client: dict[str, float] = field(default_factory=dict)
    stopped: bool = False


async def run(options: RunOptions, target: Target) -> Result:
    """
    Raises:
        CallFailed: The server cannot be asked at all: its models, a clip, or the first request to warm it up.
        ValueError: The clips cannot be used.
        OSError: They cannot be read.
    """
    async with target:
        model = options.model or await _first_model(target)
        asking = Asking(target, model, options.voice, options.more)
        notes: list[str] = []
        traffic = await _traffic(options, asking, notes)
        progress = Progress(options.load.count, options.load.duration)
        for index in range(options.warmup):
            progress.note(f"warming up, {index + 1} of {options.warmup}")
            outcomes = [Outcome(time.perf_counter())]
            await traffic.ask(_WARMUPS + index, outcomes)
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
        progress.clear()
        return await _measured(options, Result(model, notes), traffic)


async def _measured(options: RunOptions, result: Result, traffic: Traffic) -> Result:
    progress = Progress(options.load.count, options.load.duration)

    async def ask(index: int, began: float, late: float) -> None:
        outcomes = [Outcome(began, late)]
        progress.sent += 1
        try:
            await traffic.ask(index, outcomes)
        except CallFailed as exc:
            outcomes[-1].error = exc
        outcomes[-1].ended = outcomes[-1].ended or time.perf_counter()
        result.outcomes += outcomes
        progress.ended += 1
        progress.failed += any(outcome.error is not None for outcome in outcomes)

    async with _stopped_by_ctrl_c() as stop:
        client = ClientLoad()
        beside = [asyncio.create_task(progress.show()), asyncio.create_task(client.watch())]
        try:
            await run_load(options.load, ask, stop)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            progress.clear()
        result.client = client.done([outcome.late_s for outcome in result.outcomes])
        result.stopped = stop.is_set()
    return result


async def _first_model(target: Target) -> str:
    models = await target.models()
    if not models:
        raise CallFailed("no model", f"{target.url}/v1/models lists none; name one with --model")
    return models[0]


async def _traffic(options: RunOptions, asking: Asking, notes: list[str]) -> Traffic:
    """Notes what the server does not support."""
    match options.traffic:
        case "chat":
            return ChatTraffic(asking, options.prompts, spoken=False)
        case "spoken-chat":
            return ChatTraffic(asking, options.prompts, spoken=True)
        case "completions":
            return CompletionTraffic(asking, options.prompts)
        case "speech":
            return SpeechTraffic(asking, options.prompts)
    if options.clips_path is not None:
        samples = read_clips(options.clips_path)
    else:
        samples = await spoken_clips(asking.target, asking.model, options.voice, options.prompts)
    clips = Clips(samples, options.load.seed)
    if options.traffic == "transcription":
        return TranscriptionTraffic(asking, clips)
    if options.scenarios == ("plain",):
        return RealtimeTraffic(asking, clips, options.turns, options.output_len)
    return await _scenario_traffic(options, asking, clips, notes)


async def _scenario_traffic(
    options: RunOptions, asking: Asking, clips: Clips, notes: list[str]
) -> ScenarioTraffic:
    support = await find_support(asking.target, asking.model)
    scenarios = tuple(SCENARIOS[name] for name in options.scenarios)
    if support.no_turns is not None:
        refused = ", ".join(scenario.name for scenario in scenarios if scenario.hands_free)
        notes.append(f"{refused}: the server finds no turns: {support.no_turns}")
        scenarios = tuple(scenario for scenario in scenarios if not scenario.hands_free)
        if not scenarios:
            raise CallFailed("no turns", f"the server finds none itself: {support.no_turns}")
    if support.no_transcripts is not None:
        notes.append(f"words lost: the server writes down no turns: {support.no_transcripts}")
    spoken = [SpokenClip(trimmed(samples), text) for samples, text in clips.spoken]
    word = None
    if any(scenario.during_answer == "backchannel" for scenario in scenarios):
        word = trimmed(await backchannel_clip(asking.target, asking.model, options.voice, options.clips_path))
    return ScenarioTraffic(
        asking,
        Cast(Clips(spoken, clips.seed), word, options.snr_db),
        options.turns,
        options.output_len,
        scenarios,
        transcribes=support.no_transcripts is None,
        seed=options.load.seed,
    )


@asynccontextmanager
async def _stopped_by_ctrl_c() -> AsyncIterator[asyncio.Event]:
    """The first Ctrl-C ends the run, whose figures are shown; the second ends the program."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, end)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
