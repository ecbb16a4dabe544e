"""Schedules of requests and faults, drawn from a seed, run in virtual time and judged.

A schedule is a list of events, so that one that fails can be made shorter, event by event, while it fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from campaign import virtual_loop
from campaign.asks import Ask, drawn_ask, judged, outcome_of
from campaign.simulated import AT_ONCE, STAGES, running

# Longer than any request that hangs, and than what settles, expires or waits for a stage.
_QUIET_S = 60.0
_DEADLINE_S = 45.0
_SPAN_S = 2.0
_SIZES = (0, 10, 200, 3_000, 12_000, 39_000)


@dataclass(frozen=True)
class Harm:
    """Something that happens to a stage's process."""

    at: float
    stage: str
    kind: Literal["kill", "stall"]
    seconds: float = 0.0


Event = Ask | Harm


def drawn(seed: int, number: int) -> list[Event]:
    """The events of a schedule: the same for the same numbers."""
    draw = random.Random(f"{seed}:{number}")
    events: list[Event] = [drawn_ask(draw, STAGES, _SIZES, _SPAN_S) for _ in range(draw.randint(3, 14))]
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        kind: Literal["kill", "stall"] = draw.choice(("kill", "kill", "stall"))
        events.append(Harm(draw.uniform(0.0, _SPAN_S), draw.choice(STAGES), kind, draw.uniform(0.1, 3.0)))
    return events


@dataclass
class Verdict:
    """
    Attributes:
        problems: Every rule that was broken; empty if the schedule held.
        outcomes: How each request ended.
        trace: A digest of all deliveries: the same in two runs of one schedule.
    """

    problems: list[str]
    outcomes: list[str]
    trace: str


def play(events: Sequence[Event], seed: int, number: int) -> Verdict:
    """Runs a schedule. What is drawn on the way depends on the two numbers alone."""
    return virtual_loop.run(_play(events, random.Random(f"{seed}:{number}:run")))


def _request_id(number: int) -> str:
    """Every other one is that before it, with a colon and more: what a request's chunks lie under."""
    return f"r{number - 1}:a" if number % 2 else f"r{number}"


async def _play(events: Sequence[Event], draw: random.Random) -> Verdict:
    problems: list[str] = []
    async with running(draw) as world:
        asks = [each for each in events if isinstance(each, Ask)]
        harms = [each for each in events if isinstance(each, Harm)]
        loop = asyncio.get_running_loop()
        for harm in harms:
            act = world.kill if harm.kind == "kill" else world.stall
            args = (harm.stage,) if harm.kind == "kill" else (harm.stage, harm.seconds)
            loop.call_later(harm.at, act, *args)
        outcomes = await asyncio.gather(
            *(
                outcome_of(world.coordinator, _request_id(number), ask, _DEADLINE_S)
                for number, ask in enumerate(asks)
            )
        )
        is_harmed = any(harm.kind == "kill" for harm in harms) or any(
            "crash" in ask.faults.values() for ask in asks
        )
        excused = {"unavailable"} if is_harmed else set()
        if any(sum(ask.faults.get(stage) == "hang" for ask in asks) >= AT_ONCE for stage in STAGES):
            excused.add("late")  # they take all places of that stage
        for number, (ask, outcome) in enumerate(zip(asks, outcomes, strict=True)):
            if (wrong := judged(ask, outcome, excused)) is not None:
                problems.append(f"r{number}: {wrong}")
        await asyncio.sleep(_QUIET_S)
        problems += world.leftovers
        for number in range(2):
            after = Ask(0.0, 7 + number, 12_000, stream=bool(number))
            if (
                outcome := await outcome_of(world.coordinator, f"after{number}", after, _DEADLINE_S)
            ) != "answered":
                problems.append(f"a request after all that: {outcome}")
        await asyncio.sleep(_QUIET_S)
        problems += [f"after two more requests, {each}" for each in world.leftovers]
        trace = world.network.trace.hexdigest()
    strays = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if strays:
        problems.append(f"tasks are left: {strays}")
    return Verdict(problems, outcomes, trace)


def shortest(events: Sequence[Event], seed: int, number: int) -> list[Event]:
    """A schedule that fails, without the events that it fails without."""
    kept = list(events)
    for event in events:
        without = [each for each in kept if each is not event]
        if without and play(without, seed, number).problems:
            kept = without
    return kept
