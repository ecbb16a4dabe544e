"""Clients of a server that is asked for more than it can do, and what becomes of their requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import httpx
from answer_checks import has_failed
from request_mix import DrawnCall, Mix


@dataclass
class Outcomes:
    """What became of requests.

    Attributes:
        started: When the first was sent, as all times of ``time.monotonic``.
        done: When each answer was there.
        seconds: How long those took that were answered, by their kind.
        statuses: How many ended in each way.
        refusals: When requests were refused, and the seconds after which their clients may come back.
        refused_s: How long a refusal took.
    """

    started: float = field(default_factory=time.monotonic)
    done: list[float] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    refusals: list[tuple[float, int]] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    @property
    def all_seconds(self) -> list[float]:
        return [each for values in self.seconds.values() for each in values]

    def per_second(self, warm_up: float, until: float) -> float:
        """How many ended a second between two times after the start."""
        ended = [at for at in self.done if warm_up <= at - self.started < until]
        return len(ended) / (until - warm_up)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.floor(share * len(values)))] if values else math.nan


class Crowd:
    """Sends requests of a mix."""

    def __init__(self, client: httpx.AsyncClient, mix: Mix) -> None:
        self._client, self._mix = client, mix
        self._kinds = itertools.cycle(mix.kinds)

    async def ask(self, outcomes: Outcomes, call: DrawnCall | None = None) -> int | None:
        """A request. Returns the seconds after which it may come again if it was refused, else None."""
        call = call or self._mix.draw(next(self._kinds))
        began = time.monotonic()
        try:
            async with self._client.stream("POST", call.path, **call.body) as answer:
                body = b"".join([piece async for piece in answer.aiter_raw()])
        except httpx.HTTPError as exc:
            outcomes.statuses[f"{call.kind}: {type(exc).__name__}"] += 1
            return None
        now = time.monotonic()
        if answer.status_code == 429:
            outcomes.statuses["429"] += 1
            outcomes.refusals.append((now, int(answer.headers["retry-after"])))
            outcomes.refused_s.append(now - began)
            return outcomes.refusals[-1][1]
        if answer.status_code == 200 and not has_failed(body):
            outcomes.statuses["200"] += 1
            outcomes.done.append(now)
            outcomes.seconds[call.kind].append(now - began)
        else:
            outcomes.statuses[f"{call.kind}: {answer.status_code} {body[-300:]!r}"] += 1
        return None

    async def in_turn(self, count: int) -> Outcomes:
        """One request of each kind after another, ``count`` times: what they take alone."""
        outcomes = Outcomes()
        for kind in self._mix.kinds * count:
            await self.ask(outcomes, self._mix.draw(kind))
        return outcomes

    async def closed_loop(self, clients: int, seconds: float) -> Outcomes:
        """So many clients, of whom each asks again when it is answered."""
        outcomes = Outcomes()

        async def keep_asking() -> None:
            while time.monotonic() - outcomes.started < seconds:
                await self.ask(outcomes)

        await asyncio.gather(*(keep_asking() for _ in range(clients)))
        return outcomes

    async def open_loop(self, rate: float, seconds: float, draw: random.Random) -> tuple[Outcomes, int, int]:
        """Requests that come at random, so many a second; whoever waits in the end leaves.

        Returns what became of them, how many were sent, and how many left.
        """
        outcomes = Outcomes()
        asked: set[asyncio.Task[int | None]] = set()
        sent, due = 0, outcomes.started
        while (due := due + draw.expovariate(rate)) < outcomes.started + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asking = asyncio.ensure_future(self.ask(outcomes))
            asked.add(asking)
            asking.add_done_callback(asked.discard)
            sent += 1
        waiting = list(asked)
        for asking in waiting:
            asking.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return outcomes, sent, sum(asking.cancelled() for asking in waiting)

    async def obedient_burst(self, count: int) -> tuple[Outcomes, int]:
        """Requests that all come at once, and again when ``Retry-After`` of their refusal says.

        Returns what became of them, and how many were refused at all.
        """
        outcomes = Outcomes()

        async def insist() -> bool:
            call = self._mix.draw(next(self._kinds))
            was_refused = False
            while (seconds := await self.ask(outcomes, call)) is not None:
                was_refused = True
                await asyncio.sleep(seconds)
            return was_refused

        return outcomes, sum(await asyncio.gather(*(insist() for _ in range(count))))
