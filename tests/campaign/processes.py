"""Schedules of requests and faults on real processes: the coordinator here, each stage in one of its own.

Faults are signals from outside, and orders on a switchboard: at the N-th time that a process reaches a point,
in Python (``seams``) or in Rust, it waits, fails, dies, is stopped or forks. ``run_real`` starts this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import psutil  # type: ignore[import-untyped]

from campaign.asks import Ask, drawn_ask, judged, outcome_of
from campaign.rest import left_in
from campaign.stages import INSPECT
from campaign.verdict import Verdict
from sglang_omni._core import Switchboard
from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, ServesConfig, StageConfig
from sglang_omni.config.schema.watchdog import WatchdogConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

if TYPE_CHECKING:
    from sglang_omni._core import FaultAction

STAGES = ("a", "b", "c", "d")
_SIZES = (0, 10, 3_000, 40_000, 300_000, 900_000)
_SPAN_S = 0.4
_DEADLINE_S = 15.0
_HEARTBEAT_S = 3.0
# In which all is at rest again after the last request has ended.
_REST_S = 20.0
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EAGAIN)
# What a process is at rest with may differ between two of them, but not grow.
_OPEN = ("descriptors", "memory files", "threads", "relays")

Points = Mapping[str, "tuple[FaultAction, ...]"]
_AT_CALLS: tuple[FaultAction, ...] = ("kill", "delay", "stop")
# By point, what may be ordered there; ``seams`` and rust/faults say where each is.
POINTS: Points = {
    "control.send": (*_AT_CALLS, "partial", "interrupts"),
    "control.send.after": _AT_CALLS,
    "control.receive": (*_AT_CALLS, "interrupts"),
    "control.take": ("kill", "delay"),
    "control.connect": ("kill", "delay"),
    "edge.put": (*_AT_CALLS, "error", "fork"),
    "edge.put.after": (*_AT_CALLS, "error"),
    "edge.hold": (*_AT_CALLS, "error"),
    "edge.hold.after": (*_AT_CALLS, "error"),
    "edge.announce": (*_AT_CALLS, "error"),
    "edge.announce.after": _AT_CALLS,
    "edge.get": (*_AT_CALLS, "error", "fork"),
    "edge.get.after": (*_AT_CALLS, "error"),
    "edge.cleanup": ("kill", "delay"),
    "edge.cleanup.after": ("kill", "delay"),
    "stage.receive": _AT_CALLS,
    "stage.route": _AT_CALLS,
    "stage.route.after": _AT_CALLS,
    "stage.abort": _AT_CALLS,
    "stage.abort.after": _AT_CALLS,
    "stage.progress": _AT_CALLS,
    "stage.progress.after": _AT_CALLS,
    "stage.compute": (*_AT_CALLS, "error", "fork", "hang", "interrupts"),
    "stage.compute.after": _AT_CALLS,
    "relay.allocate": (*_AT_CALLS, "error"),
    "relay.publish": _AT_CALLS,
    "relay.published": _AT_CALLS,
    "relay.open": (*_AT_CALLS, "error"),
    "relay.connect": (*_AT_CALLS, "error"),
    "relay.take": (*_AT_CALLS, "error"),
    "relay.give_back": _AT_CALLS,
    "relay.revoke": ("kill", "delay"),
    "relay.serve": ("kill", "delay", "error", "drop"),
    "relay.reclaim": ("kill", "delay"),
    "relay.reclaimed": ("kill", "delay"),
}
# In the process that takes the place of one that was killed, and here.
SUCCESSORS: Points = {"process.start": ("kill", "delay", "error"), "thread.start": ("error",)}
HERE: Points = {
    "supervisor.launch": ("delay", "error"),
    "coordinator.stage_down": ("delay",),
    "coordinator.end": ("delay",),
}


Kind = Literal["kill", "stop", "no descriptors"]


@dataclass(frozen=True)
class Strike:
    """An order on the switchboard.

    Attributes:
        at: Seconds from the beginning.
        process: The one that it is for; "": any that reaches the point.
        after: The hit that it strikes at, from 1.
        argument: Milliseconds, or an error's number.
    """

    at: float
    process: str
    point: str
    action: FaultAction
    after: int
    argument: int


@dataclass(frozen=True)
class Signal:
    """A fault from outside a stage's process: its end, a stop, or no descriptors for a time."""

    at: float
    stage: str
    kind: Kind
    seconds: float = 0.0


Event = Ask | Strike | Signal


def drawn(seed: int, number: int) -> list[Event]:
    """The events of a schedule: the same for the same numbers."""
    draw = random.Random(f"{seed}:processes:{number}")
    events: list[Event] = []
    for _ in range(draw.randint(3, 12)):
        ask = drawn_ask(draw, STAGES, _SIZES, _SPAN_S)
        if "hang" in ask.faults.values():
            # Nobody but its caller ends it.
            ask = Ask(
                ask.at, ask.value, ask.size, ask.stream, ask.faults, leaves_after=draw.uniform(0.0, 1.0)
            )
        events.append(ask)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3))):
        at, stage = draw.choice((0.0, draw.uniform(0.0, _SPAN_S))), draw.choice(STAGES)
        if draw.random() < 0.25:
            kind: Literal["kill", "stop", "no descriptors"] = draw.choice(
                ("kill", "kill", "stop", "no descriptors")
            )
            events.append(Signal(at, stage, kind, draw.choice((draw.uniform(0.05, 1.0), 1.5 * _HEARTBEAT_S))))
            continue
        events.append(drawn_strike(draw, at, stage, POINTS))
        if draw.random() < 0.15:
            events.append(Signal(at + 0.1, stage, "kill"))
            events.append(drawn_strike(draw, at, "", draw.choice((SUCCESSORS, HERE))))
    return events


def drawn_strike(draw: random.Random, at: float, process: str, points: Points) -> Strike:
    """One of the points, and what may be ordered there."""
    point = draw.choice(sorted(points))
    action = draw.choice(points[point])
    argument = draw.choice(_ERRORS) if action == "error" else draw.choice((1, 20, 200, 1000))
    # One call in a few is a request's; the later ones are reached in busy schedules alone.
    after = min(1 + int(draw.expovariate(1 / 4)), 20) if process else 1
    return Strike(at, process, point, action, after, argument)


class CampaignConfig(PipelineConfig):
    preload: ClassVar[tuple[str, ...]] = ("campaign.stages",)


def config(folder: str) -> PipelineConfig:
    def stage(name: str, **fields: Any) -> StageConfig:
        relay = RelayConfig(slot_size_mb=1, credits=2)
        factory, args = "campaign.stages.scheduler", {"name": name}
        return StageConfig(name=name, process=name, factory=factory, factory_args=args, relay=relay, **fields)

    return CampaignConfig(
        model_path="none",
        stages=[
            stage("a", next=["b", "c"], stream_to=["d"]),
            stage("b", next="d"),
            stage("c", next="d"),
            stage(
                "d",
                terminal=True,
                wait_for=["b", "c"],
                merge_fn="campaign.stages.merge",
                can_accept_stream_before_payload=True,
            ),
        ],
        serves=ServesConfig(tasks=["completion"], input_modalities=["text"], output_modalities=["text"]),
        endpoints=EndpointsConfig(base_path=folder),
        watchdog=WatchdogConfig(heartbeat_timeout=_HEARTBEAT_S, unhealthy_after=1.5),
    )


class Pipeline:
    """The running pipeline, on which one schedule is played after another."""

    def __init__(self, runner: MultiProcessPipelineRunner, board: Switchboard) -> None:
        self.runner, self.board = runner, board
        self._numbers = Counter[str]()
        self._first: dict[str, dict[str, int]] = {}

    async def warm_up(self) -> None:
        """Uses each path once, so that what is made at its first use is there, and notes what is open."""
        await self._use_all()
        self._first = await self._inspect()
        if not any(point.hits for name, point in self.board.points().items() if name.startswith("edge.")):
            raise RuntimeError(
                "the stages' processes have no points: their Python did not find sitecustomize"
            )

    async def play(self, events: Sequence[Event], number: int) -> Verdict:
        """Runs a schedule and judges it."""
        self.board.disarm()
        before = self.runner.process_ids
        fired_before = {name: point.fired for name, point in self.board.points().items()}
        strikes = [each for each in events if isinstance(each, Strike)]
        signals = [each for each in events if isinstance(each, Signal)]
        asks = [each for each in events if isinstance(each, Ask)]
        harming = [asyncio.ensure_future(self._strike(each)) for each in strikes]
        harming += [asyncio.ensure_future(self._signal(each)) for each in signals]
        continuing = asyncio.ensure_future(self._continue_stopped(random.Random(f"{number}:stops")))
        try:
            outcomes = await asyncio.gather(
                *(outcome_of(self.runner.coordinator, self._id("r"), ask, _DEADLINE_S) for ask in asks)
            )
            await asyncio.gather(*harming)
            problems = await self._at_rest()
        finally:
            for task in (*harming, continuing):
                task.cancel()
            await asyncio.gather(*harming, continuing, return_exceptions=True)
            self.board.disarm()
        points = self.board.points()
        fired = [each for each in strikes if points[each.point].fired > fired_before.get(each.point, 0)]
        excused = set(self._excuses(fired, signals, asks))
        wrong = (judged(ask, outcome, excused) for ask, outcome in zip(asks, outcomes, strict=True))
        problems += [f"request {place}: {each}" for place, each in enumerate(wrong) if each is not None]
        if not excused and (changed := _changed(before, self.runner.process_ids)):
            problems.append(f"{changed} were started again for no reason")
        return Verdict(problems, outcomes, [f"{each.point} {each.action}" for each in fired])

    def _excuses(
        self, fired: Sequence[Strike], signals: Sequence[Signal], asks: Sequence[Ask]
    ) -> Iterator[str]:
        deadly = {"kill", "stop", "hang"}
        if (
            any(each.action in deadly or each.point in SUCCESSORS for each in fired)
            or any(each.kind in deadly for each in signals)
            or any("crash" in ask.faults.values() for ask in asks)
        ):
            yield "unavailable"
        for each in fired:
            if each.action == "error":
                yield from (f"{kind}: {os.strerror(each.argument)}" for kind in ("failed", "unavailable"))
            if each.point.startswith("relay.") and each.action in ("error", "drop"):
                yield "unavailable"
        if any(each.kind == "no descriptors" for each in signals):
            yield f"unavailable: {os.strerror(errno.EMFILE)}"

    # --- faults -----------------------------------------------------------------------------------

    async def _strike(self, strike: Strike) -> None:
        await asyncio.sleep(strike.at)
        pid = self.runner.process_ids.get(strike.process, 0)
        if strike.process and not pid:
            return  # it is being started again
        if strike.point in HERE:
            pid = os.getpid()
        self.board.arm(strike.point, strike.action, after=strike.after, argument=strike.argument, pid=pid)

    async def _signal(self, sent: Signal) -> None:
        await asyncio.sleep(sent.at)
        pid = self.runner.process_ids.get(sent.stage)
        if pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process = psutil.Process(pid)
            match sent.kind:
                case "kill":
                    process.kill()
                case "stop":
                    process.suspend()
                    await asyncio.sleep(sent.seconds)
                    process.resume()
                case "no descriptors":
                    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
                    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), hard))
                    await asyncio.sleep(min(sent.seconds, 1.0))
                    process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))

    async def _continue_stopped(self, draw: random.Random) -> None:
        """Continues the processes that an order has stopped, each after a time."""
        while True:
            await asyncio.sleep(0.02)
            for pid in self.runner.process_ids.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    if process.status() == psutil.STATUS_STOPPED:
                        await asyncio.sleep(draw.choice((0.05, 0.5, 1.5 * _HEARTBEAT_S)))
                        process.send_signal(signal.SIGCONT)

    # --- afterwards -------------------------------------------------------------------------------

    async def _at_rest(self) -> list[str]:
        """What is still wrong after ``_REST_S``."""
        deadline = time.monotonic() + _REST_S
        while True:
            try:
                problems = await self._wrong_now()
            except (TimeoutError, RuntimeError) as error:
                problems = [f"the next request: {type(error).__name__}: {error}"]
            if not problems or time.monotonic() > deadline:
                return problems
            await asyncio.sleep(0.1)

    async def _wrong_now(self) -> list[str]:
        coordinator = self.runner.coordinator
        if found := left_in(coordinator):
            return found
        health = coordinator.health()
        if not health["running"] or health["hung_stages"]:
            return [f"health: {health}"]
        self.board.disarm()
        await self._use_all()
        now = await self._inspect()
        return [
            f"{place} has {held} {what}" + (f", not {first}" if first else "")
            for place, all_held in now.items()
            for what, held in all_held.items()
            if held > (first := self._first[place][what] if what in _OPEN else 0)
        ]

    async def _use_all(self) -> None:
        for size in (10, 900_000):
            for stream in (False, True):
                ask = Ask(0.0, 7, size, stream)
                outcome = await outcome_of(self.runner.coordinator, self._id("after"), ask, _DEADLINE_S)
                if outcome != "answered":
                    raise RuntimeError(outcome)

    async def _inspect(self) -> dict[str, dict[str, int]]:
        """What each stage's process holds, this request apart."""
        async with asyncio.timeout(_DEADLINE_S):
            held: dict[str, dict[str, int]] = await self.runner.coordinator.submit(
                self._id(INSPECT), {INSPECT: True}
            )
        for name in STAGES:
            held[name]["requests"] -= 1
        return held

    def _id(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}{self._numbers[kind]}"


def _changed(before: dict[str, int], now: dict[str, int]) -> list[str]:
    return [name for name, pid in before.items() if now.get(name) != pid]


@contextlib.asynccontextmanager
async def running(folder: str) -> Any:
    """The pipeline of this process, which ``run`` has given a switchboard."""
    board = Switchboard.open(os.environ["SGLANG_OMNI_FAULTS"])
    runner = MultiProcessPipelineRunner(config(folder), restart_window=0.5)
    await runner.start()
    try:
        pipeline = Pipeline(runner, board)
        await pipeline.warm_up()
        yield pipeline
    finally:
        board.disarm()
        await runner.stop()
