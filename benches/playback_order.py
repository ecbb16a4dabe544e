"""``make bench-playback``, first part: the codec's order of work in virtual time.

The stage's own scheduler runs with a codec whose work takes no time but moves the clock by what it costs, and
frames come at a pace that is given. So the table is the same on a busy machine.

PYTHONPATH=../tests python playback_order.py [--requests 1 8 16] [--pace 1.3 2 4] [--apart 0 0.5] [--cost 4 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from virtual_time import Arrivals, Departures, VirtualClock

from sglang_omni.models.qwen3_omni.components.checkpoint import SAMPLE_RATE
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler, Vocoder
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.playback import Playback
from sglang_omni.scheduling.turns import SchedulePolicy, sound_seconds

GROUPS, FRAME_S, FRAMES, FIRST_FRAME_S = 16, 0.08, 125, 0.1
POLICIES: tuple[SchedulePolicy, ...] = ("fcfs", "deadline")
MEASURED = (4.0, 5.0)
HEADINGS = (
    *("requests", "apart", "frames' pace", "policy", "underrun, all", "worst listener"),
    *("first sound", "last first sound", "all done"),
)


class Cost(NamedTuple):
    """Seconds of a batch, and of each frame in it."""

    batch: float
    frame: float


class Load(NamedTuple):
    """Answers of ten seconds, with requests ``apart`` seconds from one another, and frames that come ``pace``
    times as fast as they are played."""

    requests: int
    apart: float
    pace: float


class CostlyCodec:
    """Moves the clock instead of decoding."""

    total_upsample = round(FRAME_S * SAMPLE_RATE)

    def __init__(self, clock: VirtualClock, cost: Cost) -> None:
        self._clock, self._cost = clock, cost

    def open_stream(self) -> CostlyCodec:
        return self

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return self.decode_batch([self], codes)

    def decode_batch(self, streams: Sequence[CostlyCodec], codes: torch.Tensor) -> torch.Tensor:
        frames = codes.shape[-1]
        self._clock.sleep(self._cost.batch + self._cost.frame * len(streams) * frames)
        return torch.zeros(len(streams), 1, frames * self.total_upsample)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--pace", nargs="+", type=float, default=[1.3, 2.0, 4.0], help="times real time")
    parser.add_argument("--apart", nargs="+", type=float, default=[0.0, 0.5], help="seconds between requests")
    parser.add_argument(
        "--cost",
        nargs=2,
        type=float,
        default=MEASURED,
        help="of a batch, and of each frame in it, in ms (default: the codec of playback.py, on one core)",
    )
    args = parser.parse_args(argv)
    cost = Cost(args.cost[0] / 1000, args.cost[1] / 1000)
    print(f"A batch takes {cost.batch * 1000:.1f} ms, and {cost.frame * 1000:.1f} ms for each frame in it.\n")
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    loads = [Load(n, apart, pace) for n in args.requests for apart in args.apart for pace in args.pace]
    for load in loads:
        if load.requests == 1 and load.apart:
            continue
        for policy in POLICIES:
            played, end = simulated(policy, load, cost)
            print("| " + " | ".join(row(policy, load, played, end)) + " |")
    return 0


def row(policy: SchedulePolicy, load: Load, played: list[Playback], end: float) -> list[str]:
    underruns = [playback.underrun_s for playback in played]
    firsts = [playback.first_sound or 0.0 for playback in played]
    seconds = (sum(underruns), max(underruns), statistics.median(firsts), max(firsts), end)
    return [
        *(str(load.requests), f"{load.apart:g} s", f"{load.pace:g} x", policy),
        *(f"{value:.2f} s" for value in seconds),
    ]


def simulated(policy: SchedulePolicy, load: Load, cost: Cost) -> tuple[list[Playback], float]:
    """What each listener hears, and when the last answer is done."""
    clock = VirtualClock()
    scheduler = Code2WavScheduler(
        cast(Vocoder, CostlyCodec(clock, cost)), "cpu", 25, None, schedule_policy=policy, clock=clock
    )
    played = [Playback(number * load.apart) for number in range(load.requests)]

    def put_out(message: OutgoingMessage) -> None:
        if message.type == "error":
            raise message.data
        if message.type == "stream":
            played[int(message.request_id)].feed(clock.now, sound_seconds(message.data))

    inbox = Arrivals(clock, scheduler.stop)
    scheduler.inbox, scheduler.outbox = inbox, Departures(put_out)
    for number in range(load.requests):
        name, began = str(number), number * load.apart
        payload = StagePayload(name, OmniRequest(None, {"stream": True}), None)
        inbox.at(began, IncomingMessage(name, "new_request", payload))
        times = [began + FIRST_FRAME_S + index * FRAME_S / load.pace for index in range(FRAMES)]
        for index, when in enumerate(times):
            item = StreamItem(index, torch.zeros(GROUPS, dtype=torch.int64), "talker")
            inbox.at(when, IncomingMessage(name, "stream_chunk", item))
        inbox.at(times[-1], IncomingMessage(name, "stream_done"))
    scheduler.start()
    return played, clock.now


if __name__ == "__main__":
    sys.exit(main())
