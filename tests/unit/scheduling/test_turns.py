"""The order of work in virtual time: who speaks next, and that no request starves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from virtual_time import Arrivals, Departures, VirtualClock

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.playback import Playback
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession
from sglang_omni.scheduling.turns import WHOLE_ANSWER_S, SchedulePolicy, sound_seconds

RATE = 1_000
POLICIES: tuple[SchedulePolicy, ...] = ("fcfs", "deadline")


@dataclass
class Item:
    data: Any


@dataclass
class Stage:
    """A scheduler in virtual time, and what came out of it."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    out: list[tuple[float, OutgoingMessage]] = field(default_factory=list)

    def run(self, scheduler: StreamScheduler, coming: dict[float, list[IncomingMessage]]) -> None:
        inbox = Arrivals(self.clock, scheduler.stop)
        scheduler.inbox = inbox
        scheduler.outbox = Departures(lambda message: self.out.append((self.clock.now, message)))
        for when, messages in coming.items():
            for message in messages:
                inbox.at(when, message)
        scheduler.start()

    def order(self) -> list[str]:
        return [message.request_id for _, message in self.out if message.type == "stream"]

    def results(self) -> dict[str, Any]:
        return {message.request_id: message.data.data for _, message in self.out if message.type == "result"}

    def ended(self, request_id: str) -> float:
        return next(when for when, m in self.out if m.request_id == request_id and m.type == "result")


class Sentences(StreamSession):
    """Speaks the sentences of a payload, ``(seconds of work, seconds of sound)`` each."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.spoken: list[float] = []

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        for work, seconds in payload.data:
            self.clock.sleep(work)
            self.spoken.append(seconds)
            yield {"audio_data": np.zeros(round(seconds * RATE)), "sample_rate": RATE}

    def result(self) -> Any:
        return self.spoken


def voice(stage: Stage, policy: SchedulePolicy) -> StreamScheduler:
    return StreamScheduler(
        lambda: Sentences(stage.clock),
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: payload.request.params["stream"],
        schedule_policy=policy,
        clock=stage.clock,
    )


def ask(request_id: str, sentences: list[tuple[float, float]], *, stream: bool = True) -> IncomingMessage:
    payload = StagePayload(request_id, OmniRequest(None, {"stream": stream}), sentences)
    return IncomingMessage(request_id, "new_request", payload)


def test_the_listener_who_runs_dry_first_is_next() -> None:
    stage = Stage()
    # In hand after their first sentences, at 0.3: long 7.8 s, short 0.4 s, middle 2 s.
    asked = {
        0.0: [
            ask("long", [(0.1, 8.0), (0.1, 8.0)]),
            ask("short", [(0.1, 0.5), (0.1, 1.0), (0.1, 1.0)]),
            ask("middle", [(0.1, 2.0), (0.1, 2.0)]),
        ]
    }
    stage.run(voice(stage, "deadline"), asked)

    assert stage.order() == ["long", "short", "middle", "short", "short", "middle", "long"]


def test_a_newcomer_goes_before_those_with_much_in_hand() -> None:
    """But not before one who would run dry before the newcomer's first sound is late."""
    for in_hand, expected in ((5.0, ["a", "a", "new", "a"]), (0.3, ["a", "a", "a", "new"])):
        stage = Stage()
        asked = {0.0: [ask("a", [(0.1, in_hand / 2), (0.1, in_hand / 2), (0.1, 1.0)])]}
        asked[0.15] = [ask("new", [(0.1, 1.0)])]
        stage.run(voice(stage, "deadline"), asked)
        assert stage.order() == expected, in_hand


@pytest.mark.parametrize("policy", POLICIES)
def test_first_come_first_served_is_the_other_order(policy: SchedulePolicy) -> None:
    stage = Stage()
    coming = {0.0: [ask(name, [(0.1, 8.0)] * 3) for name in "abcd"], 0.25: [ask("new", [(0.1, 1.0)] * 2)]}
    stage.run(voice(stage, policy), coming)

    first = stage.order().index("new")
    # It comes in the third turn. In line, it waits for all; by deadline, for the one without sound.
    assert (first, stage.order()[first + 1] == "new") == ((7, False) if policy == "fcfs" else (4, True))


@pytest.mark.parametrize("policy", POLICIES)
def test_both_orders_give_the_same(policy: SchedulePolicy) -> None:
    stage = Stage()
    sentences = {name: [(0.05 * n, 0.3 * n) for n in range(1, 5)] for name in "abc"}
    stage.run(
        voice(stage, policy), {0.1 * i: [ask(name, s)] for i, (name, s) in enumerate(sentences.items())}
    )

    assert stage.results() == {name: [seconds for _, seconds in s] for name, s in sentences.items()}


def test_whole_answers_wait_for_listeners_but_do_not_starve() -> None:
    stage = Stage()
    # Listeners ask for more than there is: 1.25 s of work a second.
    listeners = [ask(f"listener {i}", [(0.25, 0.6)] * 100) for i in range(3)]
    whole = ask("whole", [(0.25, 1.0)] * 4, stream=False)
    stage.run(voice(stage, "deadline"), {0.0: [whole, *listeners]})

    assert stage.order()[:3] == ["listener 0", "listener 1", "listener 2"]
    # One turn in each so many seconds, and one turn's wait.
    assert 4 * WHOLE_ANSWER_S <= stage.ended("whole") <= 4 * (WHOLE_ANSWER_S + 0.5 * 8)
    assert min(stage.ended(f"listener {i}") for i in range(3)) > stage.ended("whole")


def test_whole_answers_go_before_listeners_with_more_in_hand() -> None:
    stage = Stage()
    coming = {0.0: [ask("listener", [(0.1, 20.0)] * 3), ask("whole", [(0.1, 1.0)] * 3, stream=False)]}
    stage.run(voice(stage, "deadline"), coming)

    assert stage.ended("whole") == pytest.approx(0.4)


def test_an_aborted_request_loses_its_turn() -> None:
    stage = Stage()
    scheduler = voice(stage, "deadline")
    a = ask("a", [(0.1, 0.2)] * 3)
    b = ask("b", [(0.1, 5.0)] * 3)
    put = Departures(lambda message: (stage.out.append((stage.clock.now, message)), abort(message)))

    def abort(message: OutgoingMessage) -> None:
        if message.request_id == "a" and message.type == "stream":
            scheduler.abort("a")

    stage.out.clear()
    inbox = Arrivals(stage.clock, scheduler.stop)
    scheduler.inbox, scheduler.outbox = inbox, put
    for message in (a, b):
        inbox.at(0.0, message)
    scheduler.start()

    assert stage.order() == ["a", "b", "b", "b"]
    assert list(stage.results()) == ["b"]
    assert scheduler.stats() == {"num_running_reqs": 0, "num_queue_reqs": 0}


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="schedule_policy must be 'deadline' or 'fcfs', got 'sjf'"):
        voice(Stage(), "sjf")  # type: ignore[arg-type]


def test_seconds_of_what_is_no_sound() -> None:
    assert [sound_seconds(chunk) for chunk in (None, "text", {"text": "a"}, {"audio_data": None})] == [
        0.0
    ] * 4
    assert sound_seconds({"audio_data": np.zeros(500), "sample_rate": RATE}) == 0.5


FRAME_S, GROUPS = 0.08, 2


class Codec:
    """A codec whose work takes virtual time. A sample tells the code and the place in the stream."""

    total_upsample = round(FRAME_S * RATE)

    def __init__(self, clock: VirtualClock, frame_cost: float) -> None:
        self.clock, self.frame_cost = clock, frame_cost
        self.sizes: list[int] = []

    def open_stream(self) -> CodecStream:
        return CodecStream(self)

    def decode_batch(self, streams: list[CodecStream], codes: torch.Tensor) -> torch.Tensor:
        self.sizes.append(codes.shape[-1])
        self.clock.sleep(0.004 + self.frame_cost * len(streams) * codes.shape[-1])
        return torch.stack([stream.next(row) for stream, row in zip(streams, codes, strict=True)])


class CodecStream:
    def __init__(self, codec: Codec) -> None:
        self.codec, self.position = codec, 0

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return self.codec.decode_batch([self], codes)

    def next(self, codes: torch.Tensor) -> torch.Tensor:
        places = torch.arange(self.position, self.position + codes.shape[-1])
        self.position += codes.shape[-1]
        return (codes.sum(0) + 1000 * places).float().repeat_interleave(Codec.total_upsample)[None]


def codec_run(
    policy: SchedulePolicy,
    *,
    requests: int,
    apart: float,
    speed: float,
    frame_cost: float = 0.005,
    **params: Any,
) -> tuple[dict[str, Playback], Stage, Codec]:
    """Streams of a hundred frames, which come ``speed`` times as fast as they are played."""
    stage = Stage()
    codec = Codec(stage.clock, frame_cost)
    scheduler = Code2WavScheduler(
        codec,  # type: ignore[arg-type]
        "cpu",
        25,
        params.pop("left_context_size", None),
        RATE,
        schedule_policy=policy,
        clock=stage.clock,
    )
    coming: dict[float, list[IncomingMessage]] = {}
    for number in range(requests):
        name, at = str(number), number * apart
        payload = StagePayload(name, OmniRequest(None, params), None)
        coming.setdefault(at, []).append(IncomingMessage(name, "new_request", payload))
        for frame in range(100):
            item = Item(torch.tensor([number, frame]))
            due = at + frame * FRAME_S / speed
            coming.setdefault(due, []).append(IncomingMessage(name, "stream_chunk", item))
        coming.setdefault(due, []).append(IncomingMessage(name, "stream_done"))
    stage.run(scheduler, coming)
    played = {str(number): Playback(number * apart) for number in range(requests)}
    for when, message in stage.out:
        if message.type == "stream":
            played[message.request_id].feed(when, sound_seconds(message.data))
    return played, stage, codec


@pytest.mark.parametrize(("apart", "speed"), [(0.0, 1.3), (0.5, 1.3), (0.0, 4.0), (0.5, 4.0), (0.1, 8.0)])
def test_eight_listeners_hear_no_gap(apart: float, speed: float) -> None:
    """The codec has work for half of its time, or for all of it at first, if the frames come fast."""
    before, _, _ = codec_run("fcfs", requests=8, apart=apart, speed=speed)
    after, _, _ = codec_run("deadline", requests=8, apart=apart, speed=speed)

    assert sum(playback.underrun_s for playback in before.values()) > 0.05
    assert [playback.underrun_s for playback in after.values()] == [0.0] * 8


def test_more_listeners_than_can_be_served_share_the_gaps_and_take_no_longer() -> None:
    before, fcfs, _ = codec_run("fcfs", requests=24, apart=0.1, speed=4.0)
    after, deadline, _ = codec_run("deadline", requests=24, apart=0.1, speed=4.0)

    worst = [max(playback.underrun_s for playback in played.values()) for played in (before, after)]
    assert worst[1] < worst[0]
    assert deadline.clock.now < 1.05 * fcfs.clock.now


def test_far_too_much_work_is_done_in_long_pieces() -> None:
    """Four seconds of work for each second of eight listeners: small pieces would only add to it."""
    _, fcfs, before = codec_run("fcfs", requests=8, apart=0.0, speed=4.0, frame_cost=0.04)
    _, deadline, after = codec_run("deadline", requests=8, apart=0.0, speed=4.0, frame_cost=0.04)

    assert len(after.sizes) <= 1.5 * len(before.sizes)
    assert max(after.sizes) == 25
    assert deadline.clock.now < 1.01 * fcfs.clock.now


def test_samples_are_the_same_in_either_order() -> None:
    results = [codec_run(policy, requests=5, apart=0.3, speed=1.5)[1].results() for policy in POLICIES]

    for name, result in results[0].items():
        np.testing.assert_array_equal(result["audio_data"], results[1][name]["audio_data"])
        np.testing.assert_array_equal(result["codes"], results[1][name]["codes"])


def test_pieces_are_as_long_as_what_is_in_hand_allows() -> None:
    played, _, codec = codec_run("deadline", requests=1, apart=0.0, speed=1.5)
    slow = codec.sizes
    assert played["0"].underrun_s == 0.0
    # Sizes for which GPUs have graphs, but for the last: growing with the sound in hand.
    assert set(slow[:-1]) <= {2, 4, 8, 16, 25}
    assert slow[:3] == [2, 2, 2]
    assert slow[:-1] == sorted(slow[:-1])
    assert max(slow) >= 8
    whole = codec_run("deadline", requests=1, apart=0.0, speed=1.5, stream=False)[2].sizes
    assert whole == [2, 4, 8, 16, 25, 25, 20]


def test_a_late_first_chunk_is_no_reason_to_wait_for_more() -> None:
    """All frames are there at once; the first sound is as early as that of the first two frames."""
    played, _, codec = codec_run("deadline", requests=1, apart=0.0, speed=1e9)

    assert codec.sizes[0] == 2
    assert played["0"].first_sound == pytest.approx(0.014)
    assert math.isclose(played["0"].seconds, 8.0)
