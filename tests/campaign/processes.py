"""Schedules on a pipeline's processes: the coordinator here, each stage in a process of its own.

``run_real`` starts this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from campaign.asks import Ask, drawn_ask, outcome_of, with_media
from campaign.media_host import MediaHost, media_host
from campaign.playing import AT_CALLS, Event, Harm, Kind, Points, Strike, Target, drawn_strike, has_ended
from campaign.rest import left_in
from campaign.stages import INSPECT
from sglang_omni._core import Switchboard
from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, ServesConfig, StageConfig
from sglang_omni.config.schema.watchdog import WatchdogConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

STAGES = ("a", "b", "c", "d")
_SIZES = (0, 10, 3_000, 40_000, 300_000, 900_000)
_SPAN_S = 0.4
_DEADLINE_S = 15.0
_HEARTBEAT_S = 3.0
# What a process is at rest with may differ between two of them, but not grow.
_OPEN = ("descriptors", "memory files", "threads", "relays")

# By point, what may be ordered there; ``seams`` and rust/faults say where each is.
POINTS: Points = {
    "control.send": (*AT_CALLS, "partial", "interrupts"),
    "control.send.after": AT_CALLS,
    "control.receive": (*AT_CALLS, "interrupts"),
    "control.take": ("kill", "delay"),
    "control.connect": ("kill", "delay"),
    "edge.put": (*AT_CALLS, "error", "fork"),
    "edge.put.after": (*AT_CALLS, "error"),
    "edge.hold": (*AT_CALLS, "error"),
    "edge.hold.after": (*AT_CALLS, "error"),
    "edge.announce": (*AT_CALLS, "error"),
    "edge.announce.after": AT_CALLS,
    "edge.get": (*AT_CALLS, "error", "fork"),
    "edge.get.after": (*AT_CALLS, "error"),
    "edge.cleanup": ("kill", "delay"),
    "edge.cleanup.after": ("kill", "delay"),
    "stage.receive": AT_CALLS,
    "stage.route": AT_CALLS,
    "stage.route.after": AT_CALLS,
    "stage.abort": AT_CALLS,
    "stage.abort.after": AT_CALLS,
    "stage.progress": AT_CALLS,
    "stage.progress.after": AT_CALLS,
    "stage.compute": (*AT_CALLS, "error", "fork", "hang", "interrupts"),
    "stage.compute.after": AT_CALLS,
    "media.connect": (*AT_CALLS, "error"),
    "media.connect.after": AT_CALLS,
    "media.receive": (*AT_CALLS, "interrupts"),
    "media.receive.after": AT_CALLS,
    "clock.read": ("corrupt",),
    "relay.allocate": (*AT_CALLS, "error"),
    "relay.publish": AT_CALLS,
    "relay.published": AT_CALLS,
    "relay.open": (*AT_CALLS, "error"),
    "relay.connect": (*AT_CALLS, "error"),
    "relay.take": (*AT_CALLS, "error"),
    "relay.give_back": AT_CALLS,
    "relay.revoke": ("kill", "delay"),
    "relay.serve": ("kill", "delay", "error", "drop"),
    "relay.reclaim": ("kill", "delay"),
    "relay.reclaimed": ("kill", "delay"),
}
# In the process that takes the place of one that was killed, and here.
SUCCESSORS: Points = {
    "stage.load": ("kill", "delay", "error"),
    "disk.bind": ("kill", "error"),
    "disk.bind.after": ("kill", "error"),
    "process.start": ("kill", "delay", "error"),
    "thread.start": ("error",),
}
HERE: Points = {
    "supervisor.launch": ("delay", "error"),
    "disk.spec": ("error",),
    "coordinator.stage_down": ("delay",),
    "coordinator.end": ("delay",),
}


def drawn(seed: int, number: int) -> list[Event]:
    """The events of a schedule: the same for the same numbers."""
    draw = random.Random(f"{seed}:processes:{number}")
    events: list[Event] = []
    for _ in range(draw.randint(3, 12)):
        ask = drawn_ask(draw, STAGES, _SIZES, _SPAN_S)
        if "hang" in ask.faults.values():
            # It ends when its caller leaves.
            ask = Ask(
                ask.at, ask.value, ask.size, ask.stream, ask.faults, leaves_after=draw.uniform(0.0, 1.0)
            )
        events.append(with_media(draw, ask))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3))):
        at, stage = draw.choice((0.0, draw.uniform(0.0, _SPAN_S))), draw.choice(STAGES)
        if draw.random() < 0.25:
            kind: Kind = draw.choice(("kill", "kill", "stop", "no descriptors"))
            seconds = draw.choice((draw.uniform(0.05, 1.0), 1.5 * _HEARTBEAT_S))
            events.append(Harm(at, stage, kind, seconds))
            continue
        events.append(drawn_strike(draw, at, stage, POINTS))
        if draw.random() < 0.15:
            events.append(Harm(at + 0.1, stage, "kill"))
            events.append(drawn_strike(draw, at, "", draw.choice((SUCCESSORS, HERE))))
    return events


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


class Pipeline(Target):
    """The running pipeline."""

    rest_s = 20.0
    stops_s = (0.05, 0.5, 1.5 * _HEARTBEAT_S)

    def __init__(self, runner: MultiProcessPipelineRunner, host: MediaHost, board: Switchboard) -> None:
        super().__init__(board)
        self.runner, self._host = runner, host
        self._first: dict[str, dict[str, int]] = {}

    async def warm_up(self) -> None:
        """Uses each path once, so that what is made at its first use is there, and notes what is open."""
        await self._use_all()
        self._first = await self._inspect()
        self.check_points()

    def processes(self) -> dict[str, int]:
        return self.runner.process_ids

    def pid_of(self, strike: Strike) -> int | None:
        return os.getpid() if strike.point in HERE else super().pid_of(strike)

    async def ask(self, request_id: str, ask: Ask) -> str:
        return await outcome_of(self.runner.coordinator, request_id, ask, _DEADLINE_S, self._host)

    def excuses(self, fired: Sequence[Strike], harms: Sequence[Harm], asks: Sequence[Ask]) -> Iterator[str]:
        if (
            any(each.is_deadly or each.point in SUCCESSORS for each in fired)
            or any(each.is_deadly for each in harms)
            or any("crash" in ask.faults.values() for ask in asks)
        ):
            yield "unavailable"
        for each in fired:
            if each.action == "error":
                yield from (f"{kind}: {os.strerror(each.argument)}" for kind in ("failed", "unavailable"))
            if each.point == "media.connect" and each.action == "error":
                yield "refused: url could not be fetched"
            if each.point.startswith("relay.") and each.action in ("error", "drop"):
                yield "unavailable"
        if any(each.kind == "no descriptors" for each in harms):
            yield f"unavailable: {os.strerror(errno.EMFILE)}"

    async def wrong_now(self) -> list[str]:
        coordinator = self.runner.coordinator
        if found := left_in(coordinator):
            return found
        health = coordinator.health()
        if not health["running"] or health["hung_stages"]:
            return [f"health: {health}"]
        if ended := [name for name, pid in self.processes().items() if has_ended(pid)]:
            return [f"{ended} have ended, unnoticed"]
        # Not before: orders for a successor are in force until it is there.
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
                ask = Ask(0.0, 7, size, stream, medium="whole")
                outcome = await self.ask(self.new_id("after"), ask)
                if outcome != "answered":
                    raise RuntimeError(outcome)

    async def _inspect(self) -> dict[str, dict[str, int]]:
        """What each stage's process holds, this request apart."""
        async with asyncio.timeout(_DEADLINE_S):
            held: dict[str, dict[str, int]] = await self.runner.coordinator.submit(
                self.new_id(INSPECT), {INSPECT: True}
            )
        for name in STAGES:
            held[name]["requests"] -= 1
        return held


@contextlib.asynccontextmanager
async def running(folder: str) -> Any:
    """The pipeline of this process, which ``run`` has given a switchboard."""
    board = Switchboard.open(os.environ["SGLANG_OMNI_FAULTS"])
    runner = MultiProcessPipelineRunner(config(folder), restart_window=0.5)
    async with media_host() as host:
        await runner.start()
        try:
            pipeline = Pipeline(runner, host, board)
            await pipeline.warm_up()
            yield pipeline
        finally:
            board.disarm()
            await runner.stop()
