"""Requests to the campaign's pipeline: what they ask for, how they end, and how they may end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from campaign.media_host import ARRIVING, BROKEN, MediaHost, Medium, drawn_medium
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import CompleteMessage, DuplicateRequest, OmniRequest, RequestError, Unavailable

# What the last stage says, and the chunks that the first one streams to it.
PIECES = 5
PARTS = 3
# Outcomes that a fault of a stage's makes possible.
_OUTCOME_OF = {"raise": "failed", "refuse": "refused", "crash": "unavailable", "hang": "late"}


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
        medium: What the host of its medium does; "none": it has no medium.
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
    medium: Medium = "none"

    def inputs(self, host: MediaHost | None) -> dict[str, Any]:
        """What its stages see. ``host`` serves its medium; None if no request has one."""
        inputs: dict[str, Any] = {"value": self.value, "size": self.size, "faults": self.faults}
        if self.medium != "none" and host is not None:
            inputs["url"] = host.url(self.medium, self.value, self.size)
        return inputs


def answer_to(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the pipeline answers."""
    value, size = inputs["value"], inputs["size"]
    parts = [part_of(inputs, number)[0] for number in range(PARTS)]
    paths = {"b": "ab", "c": "ac"}
    return {"paths": paths, "total": value % 251 * size, "parts": parts, "text": text_of(inputs)}


def text_of(inputs: Mapping[str, Any]) -> str:
    return "".join(pieces_of(inputs["value"]))


def pieces_of(value: int) -> list[str]:
    return [f"{value}.{number} " for number in range(PIECES)]


def part_of(inputs: Mapping[str, Any], number: int) -> bytes:
    """A chunk that the first stage streams to the last."""
    return bytes([(inputs["value"] + number) % 251]) * (1 + inputs["size"] // PARTS)


def with_media(draw: random.Random, ask: Ask) -> Ask:
    """The request, or one like it with a medium. One that never comes is left by its caller."""
    medium = drawn_medium(draw)
    if medium == "silent":
        return replace(ask, medium=medium, leaves_after=draw.uniform(0.0, 1.0), aborted_after=None)
    return replace(ask, medium=medium)


def drawn_ask(draw: random.Random, stages: Sequence[str], sizes: Sequence[int], span_s: float) -> Ask:
    """A request within the first ``span_s`` seconds."""
    faults: dict[str, str] = {}
    if draw.random() < 0.2:
        faults[draw.choice(stages)] = draw.choice(tuple(_OUTCOME_OF))
    return Ask(
        at=draw.choice((0.0, draw.uniform(0.0, span_s))),
        value=draw.randrange(10_000),
        size=draw.choice(sizes),
        stream=draw.random() < 0.5,
        faults=faults,
        leaves_after=draw.choice((None, None, None, draw.expovariate(1 / 0.03))),
        aborted_after=draw.choice((None, None, None, draw.expovariate(1 / 0.03))),
        pause=draw.choice((0.0, 0.0, draw.uniform(0.0, 0.05))),
        twice=draw.random() < 0.1,
    )


async def outcome_of(
    coordinator: Coordinator, request_id: str, ask: Ask, deadline_s: float, host: MediaHost | None = None
) -> str:
    """Makes a request as its events say. Returns how it ended, in a word, with the error's text if any."""
    await asyncio.sleep(ask.at)
    loop = asyncio.get_running_loop()
    request = OmniRequest(ask.inputs(host), params={"stream": ask.stream})
    asking = asyncio.ensure_future(_answer(coordinator, request_id, request, ask))
    second = asyncio.ensure_future(_second(coordinator, request_id, request)) if ask.twice else None
    if ask.leaves_after is not None:
        loop.call_later(ask.leaves_after, asking.cancel)
    aborting = None
    if ask.aborted_after is not None:
        aborting = asyncio.ensure_future(_abort(coordinator, request_id, ask.aborted_after))
    try:
        await asyncio.wait({asking}, timeout=deadline_s)
        if not asking.done():
            outcome = f"late: held by {coordinator.held_at(request_id)}"
            asking.cancel()
            await asyncio.wait({asking})
        else:
            outcome = asking.result()
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
    if second is not None and (wrong := await second) is not None:
        outcome = wrong
    return outcome


def judged(ask: Ask, outcome: str, excused: Collection[str] = ()) -> str | None:
    """What is wrong with an outcome; None if nothing is.

    Args:
        excused: What it may be beside an answer, for what happened to the pipeline: kinds of outcomes, and
            ``"kind: text"`` for those of a kind whose error has the text in it.
    """
    allowed = {"answered", *excused}
    if ask.leaves_after is not None or ask.aborted_after is not None:
        allowed.add("cancelled")
    for fault in ask.faults.values():
        allowed.add(_OUTCOME_OF[fault])
        if fault != "crash":
            allowed.discard("answered")
    if ask.medium in BROKEN:
        allowed.add("refused: url could not be fetched")
    if ask.medium not in ("none", *ARRIVING):
        allowed.discard("answered")
    kind, _, text = outcome.partition(": ")
    for each in allowed:
        allowed_kind, _, within = each.partition(": ")
        if kind == allowed_kind and within in text:
            return None
    return f"{outcome!r}, but may only be {sorted(allowed)}"


async def _second(coordinator: Coordinator, request_id: str, request: OmniRequest) -> str | None:
    try:
        await coordinator.submit(request_id, request)
    except DuplicateRequest:
        return None
    except (RuntimeError, asyncio.CancelledError):
        pass
    return "a second request of the same id was taken"


async def _abort(coordinator: Coordinator, request_id: str, after: float) -> None:
    await asyncio.sleep(after)
    await coordinator.abort(request_id)


async def _answer(coordinator: Coordinator, request_id: str, request: OmniRequest, ask: Ask) -> str:
    expected = answer_to(request.inputs)
    if not ask.stream:
        result = await coordinator.submit(request_id, request)
        return "answered" if result == expected else f"wrong: {result}"
    pieces: list[str] = []
    async for message in coordinator.stream(request_id, request):
        if isinstance(message, CompleteMessage):
            if pieces != pieces_of(ask.value):
                return f"wrong: answered after {pieces}"
            return "answered" if message.result == expected else f"wrong: {message.result}"
        pieces.append(message.chunk["text"])
        if pieces != pieces_of(ask.value)[: len(pieces)]:
            return f"wrong: {pieces}"
        await asyncio.sleep(ask.pause)
    return "wrong: the stream ended without a result"
