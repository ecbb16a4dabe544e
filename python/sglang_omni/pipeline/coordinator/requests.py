"""The requests that the coordinator follows: their ids, what their callers get, where they are and were."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from sglang_omni.config.plan.instances import stage_of
from sglang_omni.proto import (
    CompleteMessage,
    OmniRequest,
    ProgressMessage,
    Replicas,
    RequestState,
    StageTime,
    StreamMessage,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StageVisit:
    """A request's time in one instance of a stage.

    Attributes:
        instance: The instance.
        began: When the request came, in Unix time by the clock of the instance's host.
        work: Seconds of work on it.
        wait: Seconds for which it was there besides.
        detail: A ``VisitDetail`` if the request was traced.
    """

    instance: str
    began: float
    work: float
    wait: float
    detail: dict[str, Any] | None = None


@dataclass(slots=True)
class RequestTrace:
    """One request from its submission to its end. Times are in Unix time.

    Attributes:
        submitted: When the coordinator got it.
        sent: When it went to the entry stage; None if it never did.
        ended: When its caller was answered; None while it runs.
        state: How it ended.
        timings: Seconds in each stage that it has left.
        visits: Its visits to stages, in the order in which they ended.
    """

    submitted: float = field(default_factory=time.time)
    sent: float | None = None
    ended: float | None = None
    state: RequestState = RequestState.PENDING
    timings: dict[str, StageTime] = field(default_factory=dict)
    visits: list[StageVisit] = field(default_factory=list)

    def add(self, visit: StageVisit) -> None:
        """Adds a visit; a request may come to a stage more than once."""
        self.visits.append(visit)
        time = self.timings.get(stage := stage_of(visit.instance))
        if time is None:
            self.timings[stage] = {"work": visit.work, "wait": visit.wait}
        else:
            time["work"] += visit.work
            time["wait"] += visit.wait


# The request's owner, and the owner's name for it.
OwnedId = tuple[str | None, str]

TerminalStagesResolver = Callable[[OmniRequest], Sequence[str] | None]


# Takes a chunk for a request's caller, in the event loop. False if the caller is too far behind.
TakeChunk = Callable[[StreamMessage], bool]

# What a caller adds to a request's input while it runs, chunk by chunk. Its failure is the request's.
MoreInput = AsyncGenerator[Any, None]


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """One request from its submission until its caller is answered.

    Attributes:
        request_id: The owner's name for it, unique among the running requests of that owner.
        wire_id: The stages' name for it, never used for another request.
        terminals: The stages whose results make up its result; empty if the first result is that.
        outcome: Its result, or the error it ended with.
        take: Takes its chunks; None if its caller does not stream.
        input: Sends what its caller adds to its input; None if nothing is added.
        results: The results so far, by terminal stage.
        streaming: Stages that have streamed to the caller and have not yet reported their end.
        trace: Where it was when.
        replicas: The replica that serves it, by stage; None if no stage is replicated, or before it is sent.
        owner: Whose request it is.
    """

    request_id: str
    wire_id: str
    terminals: frozenset[str]
    outcome: asyncio.Future[Any]
    take: TakeChunk | None
    input: asyncio.Task[None] | None = None
    state: RequestState = RequestState.PENDING
    results: dict[str, Any] = field(default_factory=dict)
    streaming: set[str] = field(default_factory=set)
    trace: RequestTrace = field(default_factory=RequestTrace)
    replicas: Replicas = None
    owner: str | None = None

    @property
    def is_reported(self) -> bool:
        """True if each stage that answered has also reported its visit, which comes a moment later."""
        return self.results.keys() <= self.trace.timings.keys()

    @property
    def name(self) -> OwnedId:
        """Unique among all running requests."""
        return self.owner, self.request_id

    def end(self, state: RequestState, answer: Any) -> None:
        """Answers its caller, and takes no more of its input.

        Args:
            answer: The result of a completed request, the error of a failed one.
        """
        self.state = state
        if not self.outcome.done():
            if state is RequestState.FAILED:
                self.outcome.set_exception(answer)
            elif state is RequestState.ABORTED:
                self.outcome.cancel(f"request {self.request_id!r} was aborted")
            else:
                self.outcome.set_result(answer)
        if self.input is not None:
            self.input.cancel()

    def completed(self, result: Any) -> CompleteMessage:
        """The result for its caller, with the stage that it is from, unless it is merged from several."""
        stage = next(iter(self.results)) if len(self.results) == 1 else "coordinator"
        return CompleteMessage(self.request_id, stage, success=True, result=result)


def terminals_of(
    request: OmniRequest | Any, allowed: frozenset[str], resolver: TerminalStagesResolver | None
) -> frozenset[str]:
    """The stages whose results make up this request's result.

    Raises:
        ValueError: ``resolver`` returned neither a non-empty subset of ``allowed`` nor None (all of them).
    """
    if resolver is None:
        return allowed
    names = resolver(request if isinstance(request, OmniRequest) else OmniRequest(inputs=request))
    if names is None:
        return allowed
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"terminal_stages_resolver must return a non-empty sequence of terminal stage names, or None "
            f"for all of them; got {names!r}"
        )
    unknown = sorted(set(names) - allowed)
    if unknown:
        raise ValueError(
            f"terminal_stages_resolver returned stages outside the static terminal stages: {unknown}; "
            f"allowed: {sorted(allowed)}"
        )
    return frozenset(names)


# Printable ASCII without "~", which numbered ids contain, and ":", which a relay's keys contain.
_PLAIN = re.compile(r"[ -9;-}]{1,256}")
# Used ids that are remembered. After that many, any id may have been used, so every one is numbered.
_REMEMBERED = 20_000
_LONGEST = 256
# Without ":", so that no id's keys can begin as another's.
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace(":", "")


class WireIds:
    """Gives each request a wire id: the client's id if it is plain and new, else that id and a unique number.

    Stages know requests by these ids: no client can choose another request's, and none is used twice. So a
    late message of an earlier request cannot be taken for a later one's, and no client's id equals another
    request's wire id. Either way the logs of stages contain the client's id.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._number = 0

    def new(self, request_id: str) -> str:
        """1 to 300 printable ASCII characters but ":", whatever ``request_id`` contains."""
        if (
            len(self._used) < _REMEMBERED
            and request_id not in self._used
            and _PLAIN.fullmatch(request_id) is not None
        ):
            self._used.add(request_id)
            return request_id
        self._number += 1
        shown = request_id[:_LONGEST]
        shown = quote(shown, safe=_PRINTABLE, errors="surrogatepass")[:_LONGEST]
        return f"{shown}~{self._number}"


# Requests whose traces are remembered, the latest.
_REMEMBERED_TRACES = 1024


class RequestRegistry:
    """The running requests.

    Attributes:
        running: By the owner and the owner's id.
        by_wire_id: By wire id.
    """

    def __init__(self) -> None:
        self.running: dict[OwnedId, TrackedRequest] = {}
        self.by_wire_id: dict[str, TrackedRequest] = {}
        self._wire_ids = WireIds()
        self._traces: OrderedDict[OwnedId, RequestTrace] = OrderedDict()
        self._ended: Counter[str] = Counter()

    def add(
        self, request_id: str, owner: str | None, terminals: frozenset[str], take: TakeChunk | None
    ) -> TrackedRequest:
        """Follows a new request, under a new wire id."""
        tracked = TrackedRequest(
            request_id=request_id,
            wire_id=self._wire_ids.new(request_id),
            terminals=terminals,
            outcome=asyncio.get_running_loop().create_future(),
            take=take,
            owner=owner,
        )
        self.running[tracked.name] = tracked
        self.by_wire_id[tracked.wire_id] = tracked
        self._traces[tracked.name] = tracked.trace
        self._traces.move_to_end(tracked.name)
        if len(self._traces) > _REMEMBERED_TRACES:
            self._traces.popitem(last=False)
        return tracked

    def remove(self, tracked: TrackedRequest) -> None:
        """Counts a request that has ended, in its final state."""
        self._ended[tracked.state.value] += 1
        tracked.trace.ended, tracked.trace.state = time.time(), tracked.state
        del self.running[tracked.name]
        del self.by_wire_id[tracked.wire_id]

    def states(self) -> Counter[str]:
        """How many running requests are in each state."""
        return Counter(tracked.state.value for tracked in self.running.values())

    def load(self) -> dict[str, int]:
        """Requests by state: at the moment for pending and running, since the start for the final states."""
        states = self.states()
        return {state.value: states[state.value] or self._ended[state.value] for state in RequestState}

    def trace(self, name: OwnedId) -> RequestTrace | None:
        """Where the request was when; None if it is not known, or no longer."""
        return self._traces.get(name)

    def timings(self, name: OwnedId, instances: Iterable[str]) -> dict[str, StageTime]:
        """Seconds in each stage that the request has left, in the order of ``instances``."""
        timings = {} if (trace := self.trace(name)) is None else trace.timings
        stages = dict.fromkeys(stage_of(instance) for instance in instances) | timings
        return {stage: timings[stage].copy() for stage in stages if stage in timings}


async def one_by_one(
    batches: AsyncGenerator[list[StreamMessage] | CompleteMessage, None],
) -> AsyncGenerator[StreamMessage | CompleteMessage, None]:
    """The messages of batches; closing it closes them."""
    async with aclosing(batches):
        async for batch in batches:
            for message in batch if isinstance(batch, list) else [batch]:
                yield message


class InFlightCounts:
    """Distributed reference counts (termination detection): which instances hold a request at the moment.

    If a process dies, exactly the requests that its instances hold are failed. Stages report differences, and
    the coordinator sums them by request and instance. Sums do not depend on the order of the reports, so
    fan-out, fan-in and streams need no agreement between stages. An instance holds a request if its sum is
    positive:

    - sending adds 1 for the receiver, which may die with the message unread, and 1 for the sender, which may
      die with the message unsent;
    - receiving subtracts 1 for the sender and adds 1 for the receiver, in case the sender's report is lost;
    - finishing subtracts 2 for the stage for each time it received the request.

    The coordinator counts the requests it sends and the results it receives in the same way.

    An instance that dies before it has reported has a sum that says nothing: others' reports of what came
    from it are in it, and its own are lost. So one from which something came holds the request, too, until
    it has reported the end of its visit.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        # By request, the instances from which something came, and those of a visit whose end is reported.
        self._sources: dict[str, set[str]] = {}
        self._visited: dict[str, set[str]] = {}

    def track(self, request_id: str) -> None:
        self._counts[request_id] = {}
        self._sources[request_id], self._visited[request_id] = set(), set()

    def forget(self, request_id: str) -> None:
        self._counts.pop(request_id, None)
        self._sources.pop(request_id, None)
        self._visited.pop(request_id, None)

    def add(self, request_id: str, instance: str, difference: int, reporter: str | None = None) -> int:
        """Returns the new sum; 0 for a request that is not tracked.

        Args:
            reporter: The instance that reports the difference; None: the coordinator counts it.
        """
        counts = self._counts.get(request_id)
        if counts is None:
            return 0
        if difference < 0 and reporter is not None and reporter != instance:
            self._sources[request_id].add(instance)
        total = counts.get(instance, 0) + difference
        if total:
            counts[instance] = total
        else:
            counts.pop(instance, None)
        return total

    def end_visit(self, request_id: str, instance: str) -> None:
        """The instance has reported all that it did for the request."""
        if (visited := self._visited.get(request_id)) is not None:
            visited.add(instance)

    def is_settled(self, request_id: str) -> bool:
        """True if all sums are zero: no instance holds the request, and no report is missing."""
        return not self._counts.get(request_id)

    def holders(self, request_id: str) -> list[str]:
        """The instances that hold the request, as far as sums say."""
        return [instance for instance, total in self._counts.get(request_id, {}).items() if total > 0]

    def load(self, request_ids: Iterable[str], instances: Iterable[str]) -> dict[str, int]:
        """How many of these requests each instance holds."""
        load = dict.fromkeys(instances, 0)
        for request_id in request_ids:
            for instance in self.holders(request_id):
                load[instance] = load.get(instance, 0) + 1
        return load

    def held_by(self, instances: Iterable[str]) -> list[str]:
        """The requests that are lost if these instances end: at least one of them holds each."""
        names = set(instances)
        return [
            request_id
            for request_id, counts in self._counts.items()
            if any(total > 0 and instance in names for instance, total in counts.items())
            or not names.isdisjoint(self._sources[request_id] - self._visited[request_id])
        ]


# Seconds after which a request that is answered is aborted in the stages that still hold it. Reports come
# within a twentieth of a second; the rest is for work that its stage would finish anyway.
_SETTLE_S = 1.0


class SettlingRequests:
    """Keeps answered requests until no stage holds them and all is reported, or aborts them after a while.

    A stage may still hold one in a branch whose result is not needed. A stage that answers within one
    interval of its reports has reported nothing of the request yet, and its counts are as if it had never
    come: such a request waits for the report of that visit, too.

    Args:
        counts: The coordinator's; a request is forgotten there when it leaves here.
        abort: Aborts the request with this wire id in every stage.
    """

    def __init__(self, counts: InFlightCounts, abort: Callable[[str], None]) -> None:
        self._counts = counts
        self._abort = abort
        # By wire id, with its deadline; the earliest first.
        self._requests: OrderedDict[str, tuple[TrackedRequest, float]] = OrderedDict()
        self._reporting: set[str] = set()

    def add(self, tracked: TrackedRequest) -> None:
        loop = asyncio.get_running_loop()
        if not self._requests:
            loop.call_later(_SETTLE_S, self._sweep)
        self._requests[tracked.wire_id] = (tracked, loop.time() + _SETTLE_S)

    def get(self, wire_id: str) -> TrackedRequest | None:
        return entry[0] if (entry := self._requests.get(wire_id)) is not None else None

    def update(self, message: ProgressMessage) -> None:
        """Lets go of the requests that this report, which is counted already, has settled."""
        self._reporting.add(message.from_stage)
        if not self._requests:
            return
        for wire_id, _, _ in message.changes:
            self._let_go(wire_id)
        for wire_id, _, _, _ in message.spans:
            self._let_go(wire_id)

    def is_settled(self, tracked: TrackedRequest) -> bool:
        """True if no stage holds an answered request, and no report of it is missing."""
        return self._counts.is_settled(tracked.wire_id) and tracked.is_reported

    def _let_go(self, wire_id: str) -> None:
        if (tracked := self.get(wire_id)) is not None and self.is_settled(tracked):
            del self._requests[wire_id]
            self._counts.forget(wire_id)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._requests:
            wire_id, (_, deadline) = next(iter(self._requests.items()))
            if deadline > loop.time():
                loop.call_at(deadline, self._sweep)
                return
            del self._requests[wire_id]
            holders = self._counts.holders(wire_id)
            self._counts.forget(wire_id)
            # A stage that reports no progress at all seems to hold every request.
            if any(stage in self._reporting for stage in holders):
                logger.debug("Request %s is finished, but %s still hold it", wire_id, holders)
                self._abort(wire_id)
