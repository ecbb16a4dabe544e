"""Which instances of the stages there are, which of them are up, and which replicas serve a request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.config.instances import replica_of, stage_of
from sglang_omni.proto import Replicas, Unavailable


@dataclass(slots=True, eq=False)
class _Replica:
    """One replica of a process: how many requests it serves, and whether it may get more."""

    requests: int = 0
    is_up: bool = True
    is_hung: bool = False
    is_leaving: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """The stages of one process, which are replicated together; and the replicas, longest unused first.

    Attributes:
        limit: How many requests the replicas that take any may have together before others wait.
        terminals: Who wants the answer of none of these stages does not wait.
    """

    stages: list[str] = field(default_factory=list)
    replicas: dict[int, _Replica] = field(default_factory=dict)
    limit: int | None = None
    terminals: frozenset[str] = frozenset()

    def able(self) -> list[int]:
        """The replicas that take requests."""
        return [
            n
            for n, replica in self.replicas.items()
            if replica.is_up and not replica.is_hung and not replica.is_leaving
        ]

    def requests(self) -> int:
        """How many requests those have."""
        return sum(self.replicas[n].requests for n in self.able())

    def has_room(self) -> bool:
        """Whether one more may come. Where no replica takes requests, it is not room that is waited for."""
        return self.limit is None or self.requests() < self.limit or not self.able()

    def take(self) -> int | None:
        """The replica with the fewest requests, of those the one that was not taken for longest."""
        able = self.able()
        if not able:
            return None
        number = min(able, key=lambda n: self.replicas[n].requests)
        replica = self.replicas.pop(number)
        replica.requests += 1
        self.replicas[number] = replica
        return number


class Assignments:
    """The coordinator's books of instances.

    A request is given one replica of each replicated process when it is sent in, and stays with it: what
    happens to the replicas later matters to requests that come later.

    Attributes:
        down: Instances that are away, with the reasons.
        hung: Instances that are there and do not answer, with the reasons.
        unhealthy_after: Seconds without an instance that serves a stage after which that is told.
    """

    def __init__(self) -> None:
        self.down: dict[str, str] = {}
        self.hung: dict[str, str] = {}
        self.unhealthy_after = 5.0
        self._down_since: dict[str, float] = {}
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}
        # Pending while somebody waits for a stage to come up; and how many do.
        self._waited_for: asyncio.Future[None] | None = None
        self._waiting_until_served = 0
        self._limited: list[_Group] = []
        # Those that wait for room, in the order in which they came.
        self._queue: deque[tuple[asyncio.Future[None], frozenset[str]]] = deque()

    def add(self, instance: str, process: str | None) -> None:
        """An instance takes requests from now on; as a replica of its stage together with its process's."""
        replica = replica_of(instance)
        if replica is None:
            return
        group = self._groups.setdefault(stage_of(process or instance), _Group())
        if stage_of(instance) not in group.stages:
            group.stages.append(stage_of(instance))
        group.replicas.setdefault(replica, _Replica())
        self._group_of[stage_of(instance)] = group
        self._release_if_served()

    def remove(self, instance: str) -> None:
        """A replica is gone for good."""
        for table in (self.down, self.hung, self._down_since):
            table.pop(instance, None)
        replica = replica_of(instance)
        if replica is not None and (group := self._group_of.get(stage_of(instance))) is not None:
            group.replicas.pop(replica, None)

    def retire(self, instances: Iterable[str]) -> None:
        """These replicas get no more requests, until ``readmit``."""
        for replica in self._replicas(instances):
            replica.is_leaving = True

    def readmit(self, instances: Iterable[str]) -> None:
        """These replicas get requests again."""
        for replica in self._replicas(instances):
            replica.is_leaving = False
        self._release_if_served()

    def have_requests(self, instances: Iterable[str]) -> bool:
        """Whether a request that has not ended was given one of these replicas."""
        return any(replica.requests for replica in self._replicas(instances))

    def are_up(self, instances: Iterable[str]) -> bool:
        """Whether these are replicas that are known and up."""
        replicas = self._replicas(instances)
        return bool(replicas) and all(replica.is_up for replica in replicas)

    def mark_down(self, instances: Iterable[str], reason: str) -> None:
        """These take no requests until ``mark_up``."""
        names = list(instances)
        for name in names:
            self.down[name] = reason
            self.hung.pop(name, None)
            self._down_since.setdefault(name, time.monotonic())
        for replica in self._replicas(names):
            replica.is_up = replica.is_hung = False

    def mark_up(self, instances: Iterable[str]) -> None:
        """These take requests again."""
        names = list(instances)
        for name in names:
            self.down.pop(name, None)
            self._down_since.pop(name, None)
        for replica in self._replicas(names):
            replica.is_up = True
        self._release_if_served()

    def mark_hung(self, instances: Iterable[str], reason: str) -> bool:
        """These do not answer: new requests go to others, or wait. Returns whether they did before."""
        names = list(instances)
        is_new = not all(name in self.hung for name in names)
        self.hung.update(dict.fromkeys(names, reason))
        for name in names:
            # It has been for so long that it is told already.
            self._down_since.setdefault(name, time.monotonic() - self.unhealthy_after)
        for replica in self._replicas(names):
            replica.is_hung = True
        return is_new

    def clear_hung(self, instances: Iterable[str]) -> bool:
        """These answer. Returns whether they did not before."""
        names = [name for name in instances if name in self.hung]
        for name in names:
            del self.hung[name]
            self._down_since.pop(name, None)
        for replica in self._replicas(names):
            replica.is_hung = False
        if names:
            self._release_if_served()
        return bool(names)

    def health(self) -> dict[str, dict[str, str]]:
        """Which instances are away or hang, and which stages have had none that serves them for a while."""
        since = time.monotonic() - self.unhealthy_after
        return {
            "down_stages": dict(self.down),
            "hung_stages": dict(self.hung),
            "unserved_stages": {
                name: why
                for name, why in self.unserved().items()
                if self._down_since.get(name, since) <= since
            },
        }

    def limit(self, stage: str, requests: int | None, terminals: frozenset[str]) -> None:
        """Have requests wait while the replicas of the stage's process have so many together.

        Those that come after them wait, too, so that they are let in in their order.

        Args:
            stage: One of the process.
            requests: The number; None: they may have any.
            terminals: The terminal stages that the process works for. Who wants the answer of none of these
                does not wait.
        """
        group = self._group_of[stage]
        group.limit, group.terminals = requests, terminals
        self._limited = [group for group in self._groups.values() if group.limit is not None]
        self._let_in()

    def requests(self, stage: str) -> int:
        """How many requests the replicas have that take any."""
        return self._group_of[stage].requests()

    def waiting(self, stage: str) -> int:
        """How many requests wait for room in the stage's process, or for any of its replicas to be up."""
        group = self._group_of[stage]
        if not group.able():
            return self._waiting_until_served
        return 0 if group.has_room() else len(self._queue)

    def must_wait(self, terminals: frozenset[str]) -> bool:
        """Whether a new request, which these stages are to answer, has to ``wait_for_room``."""
        if not self._limited or not (needed := self._limits_of(terminals)):
            return False
        return bool(self._queue) or not all(group.has_room() for group in needed)

    async def wait_for_room(self, terminals: frozenset[str], unless: asyncio.Future[Any]) -> None:
        """Returns when a request may be assigned, which is to be done at once, or ``unless`` is done."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._queue.append((turn, terminals))
        try:
            await asyncio.wait({turn, unless}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._queue.remove((turn, terminals))
            # Later: this request is to be counted first.
            loop.call_soon(self._let_in)

    def is_replicated(self, stage: str) -> bool:
        """Whether there are replicas of the stage."""
        return stage in self._group_of

    def unserved(self) -> dict[str, str]:
        """The instances that are down or hung and have no replica to take their place, with the reasons."""
        if not self.down and not self.hung:
            return {}
        away = {**self.hung, **self.down}
        return {name: reason for name, reason in away.items() if not self._has_substitute(name)}

    async def wait_until_served(self, timeout: float, unless: asyncio.Future[Any]) -> None:
        """Returns when every stage can take a new request, or ``unless`` is done.

        Args:
            timeout: Seconds.

        Raises:
            Unavailable: Some stage could not in that time; the text names it and why it is down.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._waiting_until_served += 1
        try:
            while self.unserved() and not unless.done() and (left := deadline - loop.time()) > 0:
                if self._waited_for is None:
                    self._waited_for = loop.create_future()
                waited_for = {self._waited_for, unless}
                await asyncio.wait(waited_for, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting_until_served -= 1
        if (unserved := self.unserved()) and not unless.done():
            reason = next(iter(unserved.values()))
            raise Unavailable(
                f"stage {', '.join(map(repr, unserved))} still down after {timeout:g} s: {reason}"
            )

    def assign(self) -> Replicas:
        """For a new request, by stage, the replica that serves it; None where no stage is replicated."""
        if not self._groups:
            return None
        assigned: dict[str, int] = {}
        for group in self._groups.values():
            if (number := group.take()) is not None:
                assigned.update(dict.fromkeys(group.stages, number))
        return assigned or None

    def release(self, assigned: Mapping[str, int]) -> None:
        """The request with these replicas has ended."""
        for group in self._groups.values():
            replica = group.replicas.get(assigned.get(group.stages[0], -1))
            if replica is not None:
                replica.requests -= 1
        if self._queue:
            self._let_in()

    def _limits_of(self, terminals: frozenset[str]) -> list[_Group]:
        """The processes that are limited and work for one of these; for any, where they are not known."""
        return [group for group in self._limited if not terminals or group.terminals & terminals]

    def _let_in(self) -> None:
        if not self._queue:
            return
        turn, terminals = self._queue[0]
        if not turn.done() and all(group.has_room() for group in self._limits_of(terminals)):
            turn.set_result(None)

    def _has_substitute(self, instance: str) -> bool:
        group = self._group_of.get(stage_of(instance))
        return group is not None and bool(group.able())

    def _replicas(self, instances: Iterable[str]) -> list[_Replica]:
        """Each once: a process's instances are one replica."""
        found = {}
        for instance in instances:
            group, number = self._group_of.get(stage_of(instance)), replica_of(instance)
            if group is not None and number in group.replicas:
                found[id(group.replicas[number])] = group.replicas[number]
        return list(found.values())

    def _release_if_served(self) -> None:
        if self._waited_for is not None and not self.unserved():
            self._waited_for.set_result(None)
            self._waited_for = None
