"""Which new requests wait before they are sent in, and for what: a full process, or a stage that is down."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from sglang_omni.pipeline.coordinator.instances import ReplicaSet, ReplicaTable
from sglang_omni.proto import Unavailable


@dataclass(frozen=True, slots=True)
class _Limit:
    """How many requests a process's available replicas may have, and the terminal stages it works for."""

    replica_set: ReplicaSet
    requests: int
    terminals: frozenset[str]

    def has_room(self) -> bool:
        """True if another request may be admitted.

        Also true while no replica is available: requests wait for one in ``wait_until_served`` instead.
        """
        return self.replica_set.requests() < self.requests or not self.replica_set.available()


class AdmissionQueues:
    """The two queues of requests that are not sent in yet.

    ``wait_for_room`` is for a process that has as many requests as ``limit`` allows; its requests go on in
    the order they came. ``wait_until_served`` is for a stage without an available instance; all of its
    requests go on at once.

    Args:
        replicas: The coordinator's; its ``on_available`` is taken.
    """

    def __init__(self, replicas: ReplicaTable) -> None:
        self._replicas = replicas
        replicas.on_available = self._release_if_served
        self._limits: dict[ReplicaSet, _Limit] = {}
        self._queue: deque[tuple[asyncio.Future[None], frozenset[str]]] = deque()
        # Done when every stage is served again; None while no request waits for that.
        self._served: asyncio.Future[None] | None = None
        self._waiting_until_served = 0

    def limit(self, stage: str, requests: int | None, terminals: frozenset[str]) -> None:
        """Makes requests wait while the available replicas of the stage's process have this many together.

        Requests behind a waiting one wait too, so that all are admitted in the order they came.

        Args:
            stage: Any stage of the process.
            requests: The number; None for no limit.
            terminals: The terminal stages that the process contributes to. A request that needs none of them
                is not held back.
        """
        replica_set = self._replicas.set_of(stage)
        if requests is None:
            self._limits.pop(replica_set, None)
        else:
            self._limits[replica_set] = _Limit(replica_set, requests, terminals)
        self.admit_next()

    def waiting(self, stage: str) -> int:
        """How many requests wait for room in the stage's process, or for any of its replicas to be up."""
        replica_set = self._replicas.set_of(stage)
        if not replica_set.available():
            return self._waiting_until_served
        limit = self._limits.get(replica_set)
        return 0 if limit is None or limit.has_room() else len(self._queue)

    def must_wait(self, terminals: frozenset[str]) -> bool:
        """True if a new request with these terminal stages must ``wait_for_room``."""
        if not self._limits or not (limits := self._limits_of(terminals)):
            return False
        return bool(self._queue) or not all(limit.has_room() for limit in limits)

    async def wait_for_room(self, terminals: frozenset[str], unless: asyncio.Future[Any]) -> None:
        """Returns when it is the request's turn, or when ``unless`` is done.

        The caller must then have it assigned before it awaits anything else.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._queue.append((turn, terminals))
        try:
            await asyncio.wait({turn, unless}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._queue.remove((turn, terminals))
            # Not now: the next request's turn depends on this one being counted.
            loop.call_soon(self.admit_next)

    def admit_next(self) -> None:
        """Gives the first waiting request its turn if there is room. Call it after a request has ended."""
        if not self._queue:
            return
        turn, terminals = self._queue[0]
        if not turn.done() and all(limit.has_room() for limit in self._limits_of(terminals)):
            turn.set_result(None)

    async def wait_until_served(self, timeout: float, unless: asyncio.Future[Any]) -> None:
        """Returns when every stage has an available instance, or when ``unless`` is done.

        Args:
            timeout: Seconds.

        Raises:
            Unavailable: Some stage had none in that time; the text names it and why it is down.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._waiting_until_served += 1
        try:
            while self._replicas.unserved() and not unless.done() and (left := deadline - loop.time()) > 0:
                if self._served is None:
                    self._served = loop.create_future()
                futures = {self._served, unless}
                await asyncio.wait(futures, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting_until_served -= 1
        if (unserved := self._replicas.unserved()) and not unless.done():
            reason = next(iter(unserved.values()))
            raise Unavailable(
                f"stage {', '.join(map(repr, unserved))} still down after {timeout:g} s: {reason}"
            )

    def _limits_of(self, terminals: frozenset[str]) -> list[_Limit]:
        """The limits on a request with these terminal stages; all of them if it has none."""
        return [limit for limit in self._limits.values() if not terminals or limit.terminals & terminals]

    def _release_if_served(self) -> None:
        if self._served is not None and not self._replicas.unserved():
            self._served.set_result(None)
            self._served = None
