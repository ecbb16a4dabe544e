"""Which instances of the stages there are, which of them are up, and which replicas serve a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.config.instances import replica_of, stage_of
from sglang_omni.proto import Replicas


@dataclass(slots=True, eq=False)
class _Replica:
    """One replica of a process: how many requests it serves, and whether it may get more."""

    requests: int = 0
    is_up: bool = True
    is_leaving: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """The stages of one process, which are replicated together; and the replicas, longest unused first."""

    stages: list[str] = field(default_factory=list)
    replicas: dict[int, _Replica] = field(default_factory=dict)

    def is_served(self) -> bool:
        return any(replica.is_up and not replica.is_leaving for replica in self.replicas.values())

    def take(self) -> int | None:
        """The replica with the fewest requests, of those the one that was not taken for longest."""
        able = [n for n, replica in self.replicas.items() if replica.is_up and not replica.is_leaving]
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
    """

    def __init__(self) -> None:
        self.down: dict[str, str] = {}
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}
        # Pending while somebody waits for a stage to come up.
        self._waited_for: asyncio.Future[None] | None = None

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
        self.down.pop(instance, None)
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
        self.down.update(dict.fromkeys(names, reason))
        for replica in self._replicas(names):
            replica.is_up = False

    def mark_up(self, instances: Iterable[str]) -> None:
        """These take requests again."""
        names = list(instances)
        for name in names:
            self.down.pop(name, None)
        for replica in self._replicas(names):
            replica.is_up = True
        self._release_if_served()

    def is_replicated(self, stage: str) -> bool:
        """Whether there are replicas of the stage."""
        return stage in self._group_of

    def unserved(self) -> dict[str, str]:
        """The instances that are down and have no replica to take their place, with the reasons."""
        return {name: reason for name, reason in self.down.items() if not self._has_substitute(name)}

    async def wait_until_served(self, timeout: float, unless: asyncio.Future[Any]) -> None:
        """Returns when every stage can take a new request, ``unless`` is done, or the time is over.

        Args:
            timeout: Seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self.unserved() and not unless.done() and (left := deadline - loop.time()) > 0:
            if self._waited_for is None:
                self._waited_for = loop.create_future()
            await asyncio.wait({self._waited_for, unless}, timeout=left, return_when=asyncio.FIRST_COMPLETED)

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

    def _has_substitute(self, instance: str) -> bool:
        group = self._group_of.get(stage_of(instance))
        return group is not None and group.is_served()

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
