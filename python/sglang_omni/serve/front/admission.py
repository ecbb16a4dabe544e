"""Admission: how many requests run, how many wait for their turn, and which are refused."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from sglang_omni.proto import Unavailable
from sglang_omni.serve.front.limits import BodyLimits

DEFAULT_QUEUE_TIMEOUT = 60.0
# The lowest default, for a pipeline that does not say what it holds; its stages' inboxes hold the rest.
_FEWEST_RUNNING = 16
# The queue is twice what runs: its last request then waits for as long as two requests take.
_QUEUE_PER_RUNNING = 2
# Bodies that are read or wait may take the memory of this many of the largest size together.
_LARGEST_BODIES = 16
_LONGEST_RETRY_AFTER_S = 60.0
# Weight of the last time between two turns in their mean.
_WEIGHT = 1 / 32


@dataclass(frozen=True)
class AdmissionLimits:
    """
    Attributes:
        max_running: Requests that may run at once; None for any number.
        queue_size: Further requests that may wait for their turn.
        queue_timeout: Seconds that one waits at most.
    """

    max_running: int | None = None
    queue_size: int = _QUEUE_PER_RUNNING * _FEWEST_RUNNING
    queue_timeout: float = DEFAULT_QUEUE_TIMEOUT

    def as_dict(self) -> dict[str, float | None]:
        """The limits, keyed by launcher flag."""
        return {
            "max_concurrent_requests": self.max_running,
            "queue_size": self.queue_size,
            "queue_timeout": self.queue_timeout,
        }

    @classmethod
    def of_pipeline(cls, held: Mapping[str, int], given: Mapping[str, float]) -> AdmissionLimits:
        """Limits for a pipeline: its stages are all busy only if as many requests run as they hold together.

        There is one limit for all tasks: only the pipeline knows which stages a request needs, and for how
        long.

        Args:
            held: How many requests each stage works on at once.
            given: Values that replace these defaults, by the names of the launcher's flags.
        """
        running: int | None = max(_FEWEST_RUNNING, sum(held.values()))
        if "max_concurrent_requests" in given:
            running = (
                None if given["max_concurrent_requests"] == -1 else int(given["max_concurrent_requests"])
            )
        queue = _QUEUE_PER_RUNNING * (running or _FEWEST_RUNNING)
        return cls(
            running, int(given.get("queue_size", queue)), given.get("queue_timeout", DEFAULT_QUEUE_TIMEOUT)
        )

    def describe(self, held: Mapping[str, int]) -> str:
        """The limits as text for the log. ``held``: how many requests each stage works on at once."""
        if self.max_running is None:
            return "any number of requests at once (--max-concurrent-requests)"
        stages = ", ".join(f"{stage} {count}" for stage, count in held.items())
        return (
            f"{self.max_running} requests at once ({stages}), {self.queue_size} more wait up to "
            f"{self.queue_timeout:g} s (--max-concurrent-requests, --queue-size, --queue-timeout)"
        )


class Permit:
    """What a running request holds: one of the server's places, since when.

    Attributes:
        parts: How many requests of the pipeline it stands for.
    """

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.parts = 1


class TurnPace:
    """When refused requests may come back: at the latest pace at which waiting ones had their turn.

    Each is asked to come when half of the queue, and those that were refused before it, have had their turn.
    So they come one after another, find room, and the queue is not empty before they are there. If it is,
    they have not come back, and nothing is kept for them.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._mean_s: float | None = None
        self._promised = 0.0

    def begun(self, *, others_wait: bool) -> None:
        """A request that waited has its turn."""
        now = time.monotonic()
        if self._last is not None:
            seconds, mean = now - self._last, self._mean_s
            self._mean_s = seconds if mean is None else mean + _WEIGHT * (seconds - mean)
        # If nobody waits, the time until the next turn says nothing of the pace.
        self._last = now if others_wait else None

    def forget(self) -> None:
        """The queue was empty: who was refused before has not come back."""
        self._promised = 0.0

    def promise(self, waiting: int, guess_s: float) -> int:
        """Whole seconds after which a request that is refused now may come back, 1 to 60.

        Args:
            waiting: Requests in the queue.
            guess_s: Seconds between two turns, as long as none are known.
        """
        now = time.monotonic()
        mean = guess_s if self._mean_s is None else self._mean_s
        back = max(now + waiting / 2 * mean, self._promised) + mean
        self._promised = min(back, now + _LONGEST_RETRY_AFTER_S)
        return max(1, math.ceil(self._promised - now))


class Admission:
    """The permits of one server, given to requests in the order of their arrival.

    Attributes:
        refused: How many requests were refused, by reason.
        closed: Why new requests are refused, while the server waits for the end of its WebSockets.
    """

    def __init__(
        self, limits: AdmissionLimits | None = None, *, max_body_size: int = BodyLimits.max_body_size
    ) -> None:
        self.limits = limits or AdmissionLimits()
        self.refused = {"queue_full": 0, "queue_timeout": 0, "bodies": 0}
        self.closed: str | None = None
        self._running: OrderedDict[Permit, None] = OrderedDict()
        self._running_parts = 0
        self._queue: OrderedDict[asyncio.Future[Permit], None] = OrderedDict()
        self._pace = TurnPace()
        self._max_body_bytes = _LARGEST_BODIES * max_body_size
        self._body_bytes = 0

    @property
    def running(self) -> int:
        """Requests that run in the pipeline; several answers to one request count as several."""
        return self._running_parts

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """True if a request that arrives now is refused."""
        return not self._has_room and len(self._queue) >= self.limits.queue_size

    async def check(self, body_size: int | None) -> None:
        """Refuse a request whose head has come, if its permit would be refused.

        Args:
            body_size: Bytes of its body; None if they are not known.

        Raises:
            Unavailable: No new requests are taken.
            HTTPException: 429: the queue is full.
        """
        if self.closed is not None:
            raise Unavailable(self.closed)
        if self.is_full:
            raise self.refusal("queue_full")

    async def acquire(self, leaving: Callable[[], Awaitable[Any]]) -> Permit | None:
        """A permit, waited for in the queue if none is free.

        Args:
            leaving: Returns once the request's client has left.

        Returns:
            The permit, for ``release``; None if the client left first.

        Raises:
            HTTPException: 429: the queue is full, or the request has waited for too long.
        """
        if self._has_room:
            return self._give()
        if self.is_full:
            raise self.refusal("queue_full")
        if not self._queue:
            self._pace.forget()
        turn: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        left = asyncio.ensure_future(leaving())
        permit = None
        try:
            done, _ = await asyncio.wait(
                {turn, left}, timeout=self.limits.queue_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise self.refusal("queue_timeout")
            if left in done:
                left.result()
            else:
                permit = turn.result()
            return permit
        finally:
            left.cancel()
            self._queue.pop(turn, None)
            if permit is None and turn.done():
                # The request got its permit while it was leaving.
                self.release(turn.result())

    def acquire_if_free(self) -> Permit | None:
        """A permit, for ``release``; None if none is free now, or other requests wait for one."""
        return self._give() if self._has_room else None

    def release(self, permit: Permit) -> None:
        """Give a permit back: the first requests that wait get what is free."""
        del self._running[permit]
        self._running_parts -= permit.parts
        limit = self.limits.max_running
        while self._queue and (limit is None or self._running_parts < limit):
            turn, _ = self._queue.popitem(last=False)
            turn.set_result(self._give())
            self._pace.begun(others_wait=bool(self._queue))

    def widen(self, permit: Permit, parts: int) -> None:
        """Have a permit stand for ``parts`` requests of the pipeline.

        They run at once, even beyond the limit: a request that waited for further permits while it holds one
        could wait for ever. Until they end, later requests wait.
        """
        self._running_parts += parts - permit.parts
        permit.parts = parts

    def refusal(self, reason: str) -> HTTPException:
        """The error for a request that is refused, which is counted. ``reason``: a key of ``refused``."""
        why = self._why(reason)
        self.refused[reason] += 1
        seconds = self._promise()
        return HTTPException(429, f"{why}; try again in {seconds} s", headers={"retry-after": str(seconds)})

    async def hold_bytes(self, more: int) -> None:
        """Count ``more`` bytes of a body, until ``release_bytes``.

        Raises:
            HTTPException: 429: the bodies of all requests together are too large.
        """
        if self._body_bytes + more > self._max_body_bytes:
            raise self.refusal("bodies")
        self._body_bytes += more

    def release_bytes(self, held: int) -> None:
        self._body_bytes -= held

    @property
    def _has_room(self) -> bool:
        limit = self.limits.max_running
        return limit is None or (self._running_parts < limit and not self._queue)

    def _give(self) -> Permit:
        permit = Permit()
        self._running[permit] = None
        self._running_parts += permit.parts
        return permit

    def _promise(self) -> int:
        if (limit := self.limits.max_running) is None:
            return 1
        # Until one has had its turn: as if each place were held for as long as the oldest is by now.
        held_s = time.monotonic() - next(iter(self._running), Permit()).since
        return self._pace.promise(len(self._queue), held_s / limit)

    def _why(self, reason: str) -> str:
        if reason == "bodies":
            return f"the bodies of requests under way have {self._body_bytes} bytes already"
        if reason == "queue_timeout":
            return f"the request has waited {self.limits.queue_timeout:g} s for its turn (--queue-timeout)"
        return (
            f"{self.running} requests are running (--max-concurrent-requests), "
            f"{self.waiting} are waiting (--queue-size)"
        )
