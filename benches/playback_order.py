"""``make bench-playback``, first part: the order of work in virtual time.

A stage's own scheduler runs with a model whose work takes no time but moves the clock by what it costs, and
its input comes at a pace that is given. So the table is the same on a busy machine.

PYTHONPATH=../tests python playback_order.py [--requests 1 8 16] [--pace 1.3 2 4] [--apart 0 0.5] [--cost 4 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from virtual_time import Arrivals, Departures, VirtualClock

from sglang_omni.models.speech_chat.components.voice import SAMPLE_RATE, TimedSpeech, Voice
from sglang_omni.models.speech_chat.speak import SpeakSession
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler, Vocoder
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.playback import Playback
from sglang_omni.scheduling.stream_scheduler import StreamScheduler
from sglang_omni.scheduling.turns import SchedulePolicy, sound_seconds

GROUPS, FRAME_S, FRAMES, FIRST_ITEM_S = 16, 0.08, 125, 0.1
# Of the codec of ``playback.py`` on one quiet core: ms of a batch, and of each frame in it.
CODEC_COST = (4.0, 5.0)
# Speech-chat's voice: characters a second, and seconds of sound that it makes in one on a quiet core.
CHARS_PER_SECOND, VOICE_SPEED = 15.0, 100.0
ANSWER = (
    "The bridge was built in the spring of that year, long before the railway came. "
    "People walked across it in the morning, with baskets of bread and apples for the market, "
    "and came back in the evening, when the lamps were lit. "
    "When the river rose, the children stood on the bank, and counted the logs that floated by. "
    "It was rebuilt in stone after the flood, which carried away the old piers, "
    "and it has stood there ever since. "
    "Today it is a place where people meet."
)
POLICIES: tuple[SchedulePolicy, ...] = ("fcfs", "deadline")
HEADINGS = (
    *("stage", "requests", "apart", "pace", "policy", "underrun, all", "worst listener"),
    *("first sound", "last first sound", "all done"),
)


class Load(NamedTuple):
    """Requests ``apart`` seconds from one another; input comes ``pace`` times as fast as it is played."""

    requests: int
    apart: float
    pace: float


class Stage(NamedTuple):
    """A stage to measure.

    Attributes:
        scheduler: Makes it.
        items: Its input, each with the seconds of sound that it stands for.
    """

    scheduler: Callable[[VirtualClock, SchedulePolicy], StreamScheduler]
    items: list[tuple[float, Any]]


class CostlyCodec:
    """Moves the clock instead of decoding."""

    total_upsample = round(FRAME_S * SAMPLE_RATE)

    def __init__(self, clock: VirtualClock, cost: Sequence[float]) -> None:
        self._clock = clock
        self._batch, self._frame = (ms / 1000 for ms in cost)

    def open_stream(self) -> CostlyCodec:
        return self

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return self.decode_batch([self], codes)

    def decode_batch(self, streams: Sequence[CostlyCodec], codes: torch.Tensor) -> torch.Tensor:
        frames = codes.shape[-1]
        self._clock.sleep(self._batch + self._frame * len(streams) * frames)
        return torch.zeros(len(streams), 1, frames * self.total_upsample)


class CostlyVoice:
    """Moves the clock instead of speaking."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def speak(self, sentence: str, speed: float, seed: int) -> TimedSpeech:
        seconds = len(sentence) / CHARS_PER_SECOND
        self._clock.sleep(seconds / VOICE_SPEED)
        return TimedSpeech(np.zeros(round(seconds * SAMPLE_RATE), np.float32), [])


def codec_stage(cost: Sequence[float]) -> Stage:
    def scheduler(clock: VirtualClock, policy: SchedulePolicy) -> StreamScheduler:
        codec = cast(Vocoder, CostlyCodec(clock, cost))
        return Code2WavScheduler(codec, "cpu", 25, None, schedule_policy=policy, clock=clock)

    return Stage(scheduler, [(FRAME_S, torch.zeros(GROUPS, dtype=torch.int64))] * FRAMES)


def voice_stage() -> Stage:
    def scheduler(clock: VirtualClock, policy: SchedulePolicy) -> StreamScheduler:
        voice = cast(Voice, CostlyVoice(clock))
        return StreamScheduler(
            lambda: SpeakSession(voice, keeps_up=policy == "deadline", clock=clock),
            expects_stream=lambda payload: True,
            wants_chunks=lambda payload: True,
            schedule_policy=policy,
            clock=clock,
        )

    tokens = [ANSWER[start : start + 4] for start in range(0, len(ANSWER), 4)]
    return Stage(scheduler, [(len(text) / CHARS_PER_SECOND, {"text": text}) for text in tokens])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--pace", nargs="+", type=float, default=[1.3, 2.0, 4.0], help="times real time")
    parser.add_argument("--apart", nargs="+", type=float, default=[0.0, 0.5], help="seconds between requests")
    parser.add_argument(
        "--cost", nargs=2, type=float, default=CODEC_COST, help="of a codec's batch and frame, ms"
    )
    args = parser.parse_args(argv)
    stages = {"code2wav": codec_stage(args.cost), "speak": voice_stage()}
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    for name, stage in stages.items():
        for load in loads(args):
            for policy in POLICIES:
                print("| " + " | ".join([name, *row(policy, load, *simulated(stage, policy, load))]) + " |")
    return 0


def loads(args: argparse.Namespace) -> Iterator[Load]:
    for requests in args.requests:
        for apart in args.apart if requests > 1 else [0.0]:
            for pace in args.pace:
                yield Load(requests, apart, pace)


def row(policy: SchedulePolicy, load: Load, played: list[Playback], end: float) -> list[str]:
    underruns = [playback.underrun_s for playback in played]
    firsts = [playback.first_sound or 0.0 for playback in played]
    seconds = (sum(underruns), max(underruns), statistics.median(firsts), max(firsts), end)
    return [
        *(str(load.requests), f"{load.apart:g} s", f"{load.pace:g} x", policy),
        *(f"{value:.2f} s" for value in seconds),
    ]


def simulated(stage: Stage, policy: SchedulePolicy, load: Load) -> tuple[list[Playback], float]:
    """What each listener hears, and when the last answer is done."""
    clock = VirtualClock()
    scheduler = stage.scheduler(clock, policy)
    played = [Playback(number * load.apart) for number in range(load.requests)]

    def put_out(message: OutgoingMessage) -> None:
        if message.type == "error":
            raise message.data
        if message.type == "stream":
            played[int(message.request_id)].feed(clock.now, sound_seconds(message.data))

    inbox = Arrivals(clock, scheduler.stop)
    scheduler.inbox, scheduler.outbox = inbox, Departures(put_out)
    for number in range(load.requests):
        name, when = str(number), number * load.apart
        asked = OmniRequest(None, {"stream": True}, {"task": "chat", "output_modalities": ["audio"]})
        inbox.at(when, IncomingMessage(name, "new_request", StagePayload(name, asked, {})))
        when += FIRST_ITEM_S
        for index, (seconds, item) in enumerate(stage.items):
            inbox.at(when, IncomingMessage(name, "stream_chunk", StreamItem(index, item, "before")))
            when += seconds / load.pace
        inbox.at(when, IncomingMessage(name, "stream_done"))
    scheduler.start()
    return played, clock.now


if __name__ == "__main__":
    sys.exit(main())
