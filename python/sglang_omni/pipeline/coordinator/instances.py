"""The stages' instances: where each is reached, which are up, and which replicas serve a request."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sglang_omni.config.plan.instances import replica_of, stage_of
from sglang_omni.pipeline.transport.control_plane import ControlPlaneClosed, CoordinatorControlPlane
from sglang_omni.pipeline.transport.ipc.address import is_on_this_host
from sglang_omni.proto import EndpointsMessage, Message, Replicas

logger = logging.getLogger(__name__)


class StageDirectory:
    """Knows the endpoint of each registered instance, and sends messages to one or to all.

    Args:
        control_plane: The coordinator's.
    """

    def __init__(self, control_plane: CoordinatorControlPlane) -> None:
        self._control_plane = control_plane
        # Empty while an instance's endpoint is not known yet.
        self._endpoints: dict[str, str] = {}
        self._tcp_endpoints: dict[str, str] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def __contains__(self, instance: str) -> bool:
        return instance in self._endpoints

    def __iter__(self) -> Iterator[str]:
        return iter(self._endpoints)

    def add(self, instance: str, endpoint: str) -> None:
        """Adds an instance; its endpoint is empty if ``move`` will give it."""
        self._endpoints[instance] = endpoint

    def remove(self, instance: str) -> None:
        """Forgets an instance, which need not be known."""
        self._endpoints.pop(instance, None)
        self._tcp_endpoints.pop(instance, None)

    def move(self, endpoints: Mapping[str, str]) -> None:
        """Takes the new endpoints of instances on other hosts, and sends all of those to every stage.

        An instance that was added with an ``ipc://`` endpoint keeps it. Call this whenever processes have
        become ready, before requests may reach them: a restarted process needs the endpoints too.
        """
        self._tcp_endpoints.update(endpoints)
        for instance, endpoint in endpoints.items():
            if not is_on_this_host(self._endpoints.get(instance, "")):
                self._endpoints[instance] = endpoint
                self._control_plane.move(instance, endpoint)
        if self._tcp_endpoints:
            message = EndpointsMessage(dict(self._tcp_endpoints))
            # One task each: an instance whose queue is full does not delay the others.
            for instance, endpoint in self._reachable():
                sending = asyncio.get_running_loop().create_task(
                    self._control_plane.send_to_stage(instance, endpoint, message),
                    name=f"send endpoints to {instance}",
                )
                self._sending.add(sending)
                sending.add_done_callback(self._sent)

    async def send(self, instance: str, message: Message) -> None:
        """Sends to one instance. Raises KeyError if it is not known."""
        await self._control_plane.send_to_stage(instance, self._endpoints[instance], message)

    async def broadcast(self, message: Message, instances: Collection[str] | None = None) -> None:
        """Sends to these instances, or to all, except those whose endpoint is not known yet."""
        for instance, endpoint in self._reachable():
            if instances is None or instance in instances:
                await self._control_plane.send_to_stage(instance, endpoint, message)

    def _reachable(self) -> list[tuple[str, str]]:
        return [(instance, endpoint) for instance, endpoint in self._endpoints.items() if endpoint]

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not isinstance(error, ControlPlaneClosed):
            logger.error("Could not %s", sending.get_name(), exc_info=error)


@dataclass(slots=True, eq=False)
class _Replica:
    """One replica of a process: how many requests it serves, and whether it may get more."""

    requests: int = 0
    is_up: bool = True
    is_hung: bool = False
    is_leaving: bool = False

    @property
    def is_available(self) -> bool:
        return self.is_up and not self.is_hung and not self.is_leaving


@dataclass(slots=True, eq=False)
class ReplicaSet:
    """The replicas of one process, and its stages, which are replicated together.

    ``replicas`` is ordered by when each was last picked, the longest ago first.
    """

    stages: list[str] = field(default_factory=list)
    replicas: dict[int, _Replica] = field(default_factory=dict)

    def available(self) -> list[int]:
        """The numbers of the replicas that take requests."""
        return [number for number, replica in self.replicas.items() if replica.is_available]

    def requests(self) -> int:
        """How many requests the available replicas have together."""
        return sum(replica.requests for replica in self.replicas.values() if replica.is_available)

    def pick_least_loaded(self) -> int | None:
        """Counts a request for the available replica with the fewest, and returns its number.

        Among equals the one picked longest ago wins. None if no replica is available.
        """
        available = self.available()
        if not available:
            return None
        number = min(available, key=lambda n: self.replicas[n].requests)
        replica = self.replicas.pop(number)
        replica.requests += 1
        self.replicas[number] = replica
        return number


class ReplicaTable:
    """The state of every instance, and the replicas that each request is given.

    A request is given one replica of each replicated process when it is sent in, and keeps it: what happens
    to the replicas later affects later requests only.

    Attributes:
        down: Instance -> why it is down.
        hung: Instance -> why it is considered hung: its process runs and does not answer.
        unhealthy_after: Seconds a stage may be without an available instance before ``health`` reports it.
        on_available: Called after an instance has become available.
    """

    def __init__(self) -> None:
        self.down: dict[str, str] = {}
        self.hung: dict[str, str] = {}
        self.unhealthy_after = 5.0
        self.on_available: Callable[[], None] = lambda: None
        self._down_since: dict[str, float] = {}
        # When an instance that was down came up, and why it had been down.
        self._back: dict[str, tuple[float, str]] = {}
        self._sets: dict[str, ReplicaSet] = {}
        self._set_of: dict[str, ReplicaSet] = {}

    def add(self, instance: str, process: str | None) -> None:
        """Adds an instance that takes requests; if it is a replica, together with its process's others."""
        number = replica_of(instance)
        if number is None:
            return
        replica_set = self._sets.setdefault(stage_of(process or instance), ReplicaSet())
        if stage_of(instance) not in replica_set.stages:
            replica_set.stages.append(stage_of(instance))
        replica_set.replicas.setdefault(number, _Replica())
        self._set_of[stage_of(instance)] = replica_set
        self.on_available()

    def remove(self, instance: str) -> None:
        """Forgets a replica that has left for good."""
        for table in (self.down, self.hung, self._down_since, self._back):
            table.pop(instance, None)
        number = replica_of(instance)
        if number is not None and (replica_set := self._set_of.get(stage_of(instance))) is not None:
            replica_set.replicas.pop(number, None)

    def retire(self, instances: Iterable[str]) -> None:
        """Gives these replicas no more requests, until ``readmit``."""
        for replica in self._replicas(instances):
            replica.is_leaving = True

    def readmit(self, instances: Iterable[str]) -> None:
        """Gives these replicas requests again."""
        for replica in self._replicas(instances):
            replica.is_leaving = False
        self.on_available()

    def have_requests(self, instances: Iterable[str]) -> bool:
        """True if a running request was given one of these replicas."""
        return any(replica.requests for replica in self._replicas(instances))

    def are_up(self, instances: Iterable[str]) -> bool:
        """True if these are known replicas, and all of them are up."""
        replicas = self._replicas(instances)
        return bool(replicas) and all(replica.is_up for replica in replicas)

    def mark_down(self, instances: Iterable[str], reason: str) -> None:
        """Gives these instances no requests until ``mark_up``."""
        names = list(instances)
        for name in names:
            self.down[name] = reason
            self.hung.pop(name, None)
            self._down_since.setdefault(name, time.monotonic())
        for replica in self._replicas(names):
            replica.is_up = replica.is_hung = False

    def mark_up(self, instances: Iterable[str]) -> None:
        """Gives these instances requests again."""
        names = list(instances)
        for name in names:
            if (reason := self.down.pop(name, None)) is not None:
                self._back[name] = time.monotonic(), reason
            self._down_since.pop(name, None)
        for replica in self._replicas(names):
            replica.is_up = True
        self.on_available()

    def why_lost(self, instance: str, seconds: float) -> str | None:
        """Why the instance may not have what was sent to it within the last seconds: it is down, or was.

        None: it has been up for as long.
        """
        since, reason = self._back.get(instance, (-math.inf, ""))
        return self.down.get(instance) or (reason if time.monotonic() - since < seconds else None)

    def mark_hung(self, instances: Iterable[str], reason: str) -> bool:
        """Gives these instances no requests until ``clear_hung``. Returns whether this is news."""
        names = list(instances)
        is_new = not all(name in self.hung for name in names)
        self.hung.update(dict.fromkeys(names, reason))
        for name in names:
            # An instance is found hung after ``unhealthy_after`` seconds of silence: report it at once.
            self._down_since.setdefault(name, time.monotonic() - self.unhealthy_after)
        for replica in self._replicas(names):
            replica.is_hung = True
        return is_new

    def clear_hung(self, instances: Iterable[str]) -> bool:
        """Takes back ``mark_hung``: these instances answer. Returns whether any was hung."""
        names = [name for name in instances if name in self.hung]
        for name in names:
            del self.hung[name]
            self._down_since.pop(name, None)
        for replica in self._replicas(names):
            replica.is_hung = False
        if names:
            self.on_available()
        return bool(names)

    def health(self) -> dict[str, dict[str, str]]:
        """The reasons, by instance: of all that are down or hung, and of those unserved for a while."""
        since = time.monotonic() - self.unhealthy_after
        return {
            "down_stages": dict(self.down),
            "hung_stages": dict(self.hung),
            "unserved_stages": {
                name: reason
                for name, reason in self.unserved().items()
                if self._down_since.get(name, since) <= since
            },
        }

    def unserved(self) -> dict[str, str]:
        """The instances that are down or hung without an available replica beside them, with the reasons."""
        if not self.down and not self.hung:
            return {}
        away = {**self.hung, **self.down}
        return {name: reason for name, reason in away.items() if not self._has_substitute(name)}

    def is_replicated(self, stage: str) -> bool:
        return stage in self._set_of

    def set_of(self, stage: str) -> ReplicaSet:
        """The replicas of the stage's process. Raises KeyError if it is not replicated."""
        return self._set_of[stage]

    def assign(self) -> Replicas:
        """A new request's replicas, by stage; None if no stage is replicated."""
        if not self._sets:
            return None
        assigned: dict[str, int] = {}
        for replica_set in self._sets.values():
            if (number := replica_set.pick_least_loaded()) is not None:
                assigned.update(dict.fromkeys(replica_set.stages, number))
        return assigned or None

    def release(self, assigned: Mapping[str, int]) -> None:
        """Counts the request with these replicas as ended."""
        for replica_set in self._sets.values():
            replica = replica_set.replicas.get(assigned.get(replica_set.stages[0], -1))
            if replica is not None:
                replica.requests -= 1

    def _has_substitute(self, instance: str) -> bool:
        replica_set = self._set_of.get(stage_of(instance))
        return replica_set is not None and bool(replica_set.available())

    def _replicas(self, instances: Iterable[str]) -> list[_Replica]:
        """Each replica once: the instances of one process share it."""
        found = {}
        for instance in instances:
            replica_set, number = self._set_of.get(stage_of(instance)), replica_of(instance)
            if replica_set is not None and number in replica_set.replicas:
                found[id(replica_set.replicas[number])] = replica_set.replicas[number]
        return list(found.values())
