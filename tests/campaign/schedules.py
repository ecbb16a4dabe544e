"""Schedules of requests and faults, drawn from a seed, run in virtual time and judged.

A schedule is a list of events, so that one that fails can be made shorter, event by event, while it fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign import virtual_loop
from campaign.simulated import STAGES, World, answer_to, pieces_of, running
from sglang_omni.proto import CompleteMessage, DuplicateRequest, OmniRequest, RequestError, Unavailable

# Longer than any request that hangs, and than what settles, expires or waits for a stage.
_QUIET_S = 60.0
_DEADLINE_S = 45.0
_SPAN_S = 2.0


@dataclass(frozen=True)
class Ask:
    """A request, and what goes wrong with it.

    Attributes:
        at: Seconds from the beginning.
        faults: What its stages do: "raise", "refuse", "crash" or "hang".
        leaves_after: Seconds after which its caller goes; None: it stays.
        aborted_after: Seconds after which another call aborts it.
        pause: Seconds that its reader takes for each piece of a stream.
        twice: True if a second request of the same id comes at the same time.
    """

    at: float
    value: int
    size: int
    stream: bool
    faults: dict[str, str] = field(default_factory=dict)
    leaves_after: float | None = None
    aborted_after: float | None = None
    pause: float = 0.0
    twice: bool = False


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
    events: list[Event] = []
    for _ in range(draw.randint(3, 14)):
        faults: dict[str, str] = {}
        if draw.random() < 0.2:
            faults[draw.choice(STAGES)] = draw.choice(("raise", "refuse", "crash", "hang"))
        events.append(
            Ask(
                at=draw.choice((0.0, draw.uniform(0.0, _SPAN_S))),
                value=draw.randrange(10_000),
                size=draw.choice((0, 10, 200, 3_000, 12_000, 39_000)),
                stream=draw.random() < 0.5,
                faults=faults,
                leaves_after=draw.choice((None, None, None, draw.expovariate(1 / 0.03))),
                aborted_after=draw.choice((None, None, None, draw.expovariate(1 / 0.03))),
                pause=draw.choice((0.0, 0.0, draw.uniform(0.0, 0.05))),
                twice=draw.random() < 0.1,
            )
        )
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
            *(_caller(world, f"r{number}", ask) for number, ask in enumerate(asks))
        )
        is_harmed = any(harm.kind == "kill" for harm in harms) or any(
            "crash" in ask.faults.values() for ask in asks
        )
        for number, (ask, outcome) in enumerate(zip(asks, outcomes, strict=True)):
            if (wrong := _judged(ask, outcome, is_harmed)) is not None:
                problems.append(f"r{number}: {wrong}")
        await asyncio.sleep(_QUIET_S)
        problems += world.leftovers
        for number in range(2):
            after = Ask(0.0, 7 + number, 12_000, stream=bool(number))
            if (outcome := await _caller(world, f"after{number}", after)) != "answered":
                problems.append(f"a request after all that: {outcome}")
        await asyncio.sleep(_QUIET_S)
        problems += [f"after two more requests, {each}" for each in world.leftovers]
        trace = world.network.trace.hexdigest()
    strays = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if strays:
        problems.append(f"tasks are left: {strays}")
    return Verdict(problems, outcomes, trace)


async def _caller(world: World, request_id: str, ask: Ask) -> str:
    """Makes a request as its events say. Returns how it ended, in a word or the error's text."""
    await asyncio.sleep(ask.at)
    loop = asyncio.get_running_loop()
    inputs: dict[str, Any] = {"value": ask.value, "size": ask.size, "faults": ask.faults}
    request = OmniRequest(inputs, params={"stream": ask.stream})
    asking = asyncio.ensure_future(_ask(world, request_id, request, ask))
    second = asyncio.ensure_future(_second(world, request_id, request)) if ask.twice else None
    if ask.leaves_after is not None:
        loop.call_later(ask.leaves_after, asking.cancel)
    aborting = None
    if ask.aborted_after is not None:
        aborting = asyncio.ensure_future(_abort(world, request_id, ask.aborted_after))
    try:
        async with asyncio.timeout(_DEADLINE_S):
            outcome = await asking
    except TimeoutError:
        outcome = "late"
    except asyncio.CancelledError:
        outcome = "cancelled"
    except RequestError as error:
        outcome = f"refused: {error}"
    except Unavailable as error:
        outcome = f"unavailable: {error}"
    except RuntimeError as error:
        outcome = f"failed: {error}"
    if aborting is not None:
        await aborting
    if second is not None and (said := await second) is not None:
        outcome = said
    return outcome


async def _second(world: World, request_id: str, request: OmniRequest) -> str | None:
    try:
        await world.coordinator.submit(request_id, request)
    except DuplicateRequest:
        return None
    except (RuntimeError, asyncio.CancelledError):
        pass
    return "a second request of the same id was taken"


async def _abort(world: World, request_id: str, after: float) -> None:
    await asyncio.sleep(after)
    await world.coordinator.abort(request_id)


async def _ask(world: World, request_id: str, request: OmniRequest, ask: Ask) -> str:
    if not ask.stream:
        result = await world.coordinator.submit(request_id, request)
        return "answered" if result == answer_to(request.inputs) else f"wrong: {result}"
    pieces: list[str] = []
    async for message in world.coordinator.stream(request_id, request):
        if isinstance(message, CompleteMessage):
            expected = answer_to(request.inputs)
            if pieces != pieces_of(ask.value):
                return f"wrong: answered after {pieces}"
            return "answered" if message.result == expected else f"wrong: {message.result}"
        pieces.append(message.chunk["text"])
        if pieces != pieces_of(ask.value)[: len(pieces)]:
            return f"wrong: {pieces}"
        await asyncio.sleep(ask.pause)
    return "wrong: the stream ended without a result"


def _judged(ask: Ask, outcome: str, is_harmed: bool) -> str | None:
    """What is wrong with an outcome; None if nothing is."""
    kind = outcome.partition(":")[0]
    allowed = {"answered"}
    if ask.leaves_after is not None or ask.aborted_after is not None:
        allowed.add("cancelled")
    if is_harmed:
        allowed.add("unavailable")
    for fault in ask.faults.values():
        allowed |= {"raise": {"failed"}, "refuse": {"refused"}, "crash": {"unavailable"}, "hang": {"late"}}[
            fault
        ]
        if fault != "crash":
            allowed.discard("answered")
    if kind in allowed:
        return None
    return f"{outcome!r}, but may only be {sorted(allowed)}"


def shortest(events: Sequence[Event], seed: int, number: int) -> list[Event]:
    """A schedule that fails, without the events that it fails without."""
    kept = list(events)
    for event in events:
        without = [each for each in kept if each is not event]
        if without and play(without, seed, number).problems:
            kept = without
    return kept
