"""Plays schedules on real processes: what is the same for each tier.

Faults are signals from outside, and orders on a switchboard: at the N-th time that a process reaches a point,
in Python (``seams``) or in Rust (``rust/faults``), it waits, fails, dies, is stopped or forks.
"""

from __future__ import annotations

import abc
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
from typing import TYPE_CHECKING, ClassVar, Literal

import psutil  # type: ignore[import-untyped]

from campaign.asks import Ask, judged
from sglang_omni._core import Switchboard

if TYPE_CHECKING:
    from sglang_omni._core import FaultAction

# By point, what may be ordered there.
Points = Mapping[str, "tuple[FaultAction, ...]"]
Kind = Literal["kill", "stop", "terminate", "no descriptors"]

AT_CALLS: tuple[FaultAction, ...] = ("kill", "delay", "stop")
_DEADLY = {"kill", "stop", "hang", "terminate"}
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EAGAIN)


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

    @property
    def is_deadly(self) -> bool:
        return self.action in _DEADLY


@dataclass(frozen=True)
class Harm:
    """What is done to a process from outside: a signal, or no descriptors for a time."""

    at: float
    process: str
    kind: Kind
    seconds: float = 0.0

    @property
    def is_deadly(self) -> bool:
        return self.kind in _DEADLY


Event = Ask | Strike | Harm


@dataclass
class Verdict:
    """
    Attributes:
        problems: Every rule that was broken; empty if the schedule held.
        outcomes: How each request ended.
        fired: Orders that came to be, by point and action.
    """

    problems: list[str]
    outcomes: list[str]
    fired: list[str]


def drawn_strike(draw: random.Random, at: float, process: str, points: Points) -> Strike:
    """One of the points, and what may be ordered there."""
    point = draw.choice(sorted(points))
    action = draw.choice(points[point])
    argument = draw.choice(_ERRORS) if action == "error" else draw.choice((1, 20, 200, 1000))
    # Early hits strike in most schedules, later ones where much goes on already.
    after = min(1 + int(draw.expovariate(1 / 2)), 20) if process else 1
    return Strike(at, process, point, action, after, argument)


def has_ended(pid: int) -> bool:
    """True if a process has ended, whether its parent knows it or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class Target(abc.ABC):
    """What runs, on which one schedule is played after another.

    Attributes:
        rest_s: Seconds in which all is at rest again after the last request has ended.
        stops_s: For how long what an order has stopped may stay so.
    """

    rest_s: ClassVar[float]
    stops_s: ClassVar[Sequence[float]]

    def __init__(self, board: Switchboard) -> None:
        self.board = board
        self._numbers = Counter[str]()
        self._limited = set[int]()

    @abc.abstractmethod
    def processes(self) -> dict[str, int]:
        """The processes that run, by name."""

    @abc.abstractmethod
    async def ask(self, request_id: str, ask: Ask) -> str:
        """Makes a request as its events say. Returns how it ended, as ``asks.outcome_of`` does."""

    @abc.abstractmethod
    async def wrong_now(self) -> list[str]:
        """What is not at rest, and how the next requests fail. May raise the error that one ends with."""

    @abc.abstractmethod
    def excuses(self, fired: Sequence[Strike], harms: Sequence[Harm], asks: Sequence[Ask]) -> Iterator[str]:
        """What requests may end with for what happened; see ``asks.judged``."""

    def pid_of(self, strike: Strike) -> int | None:
        """The process that an order is for; 0: any; None: it does not run at the moment."""
        return self.processes().get(strike.process) if strike.process else 0

    def new_id(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}{self._numbers[kind]}-{os.getpid()}"

    def check_points(self) -> None:
        """Raises RuntimeError if the processes have no points in Python."""
        if not any(point.hits for name, point in self.board.points().items() if name.startswith("edge.")):
            raise RuntimeError("its processes have no points: their Python did not find sitecustomize")

    async def play(self, events: Sequence[Event], number: int) -> Verdict:
        """Runs a schedule and judges it."""
        self.board.disarm()
        before = self.processes()
        fired_before = {name: point.fired for name, point in self.board.points().items()}
        asks = [each for each in events if isinstance(each, Ask)]
        strikes = [each for each in events if isinstance(each, Strike)]
        harms = [each for each in events if isinstance(each, Harm)]
        harming = [asyncio.ensure_future(self._strike(each)) for each in strikes]
        harming += [asyncio.ensure_future(self._harm(each)) for each in harms]
        continuing = asyncio.ensure_future(self._continue_stopped(random.Random(f"{number}:stops")))
        try:
            outcomes = await asyncio.gather(*(self.ask(self.new_id("r"), ask) for ask in asks))
            await asyncio.gather(*harming)
            problems = await self.at_rest()
        finally:
            for task in (*harming, continuing):
                task.cancel()
            await asyncio.gather(*harming, continuing, return_exceptions=True)
            self.board.disarm()
        fired_now = {name: point.fired for name, point in self.board.points().items()}
        fired = [each for each in strikes if fired_now.get(each.point, 0) > fired_before.get(each.point, 0)]
        excused = set(self.excuses(fired, harms, asks))
        wrong = (judged(ask, outcome, excused) for ask, outcome in zip(asks, outcomes, strict=True))
        problems += [f"request {place}: {each}" for place, each in enumerate(wrong) if each is not None]
        now = self.processes()
        changed = [name for name, pid in before.items() if now.get(name) != pid]
        if changed and not excused:
            problems.append(f"{changed} were started again for no reason")
        return Verdict(problems, outcomes, [f"{each.point} {each.action}" for each in fired])

    async def at_rest(self) -> list[str]:
        """What is still wrong after ``rest_s``."""
        deadline = time.monotonic() + self.rest_s
        while True:
            try:
                problems = await self.wrong_now()
            except Exception as error:  # noqa: BLE001  however the next request fails, it is what is wrong
                problems = [f"the next request: {type(error).__name__}: {error}"]
            if not problems or time.monotonic() > deadline:
                return problems
            await asyncio.sleep(0.1)

    async def _strike(self, strike: Strike) -> None:
        await asyncio.sleep(strike.at)
        if (pid := self.pid_of(strike)) is not None:
            order = {"after": strike.after, "argument": strike.argument, "pid": pid}
            self.board.arm(strike.point, strike.action, **order)

    async def _harm(self, harm: Harm) -> None:
        await asyncio.sleep(harm.at)
        if (pid := self.processes().get(harm.process)) is None:
            return  # it is being started again
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process = psutil.Process(pid)
            match harm.kind:
                case "kill":
                    process.kill()
                    while not has_ended(pid):
                        await asyncio.sleep(0.001)
                case "terminate":
                    process.terminate()
                case "stop":
                    process.suspend()
                    await asyncio.sleep(harm.seconds)
                    process.resume()
                case "no descriptors" if pid not in self._limited:
                    await self._limit(process, min(harm.seconds, 1.0))

    async def _limit(self, process: psutil.Process, seconds: float) -> None:
        """Leaves it no descriptors for a time. A second time within would restore the lowered limit."""
        self._limited.add(process.pid)
        try:
            soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
            process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), hard))
            await asyncio.sleep(seconds)
            process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
        finally:
            self._limited.discard(process.pid)

    async def _continue_stopped(self, draw: random.Random) -> None:
        """Continues the processes that an order has stopped, each after a time."""
        while True:
            await asyncio.sleep(0.05)
            for pid in self.processes().values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    if process.status() == psutil.STATUS_STOPPED:
                        await asyncio.sleep(draw.choice(self.stops_s))
                        process.send_signal(signal.SIGCONT)
