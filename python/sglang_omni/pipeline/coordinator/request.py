"""One request as the coordinator follows it, and the terminal stages whose results answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.pipeline.coordinator.request_trace import RequestTrace
from sglang_omni.proto import OmniRequest, Replicas, RequestState, StreamMessage

# The request's owner, and the owner's name for it.
OwnedId = tuple[str | None, str]

TerminalStagesResolver = Callable[[OmniRequest], Sequence[str] | None]


class Chunks:
    """Messages for a caller that streams. One that is behind takes several at once."""

    __slots__ = ("_has_ended", "_loop", "_messages", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: list[StreamMessage] = []
        self._waiting: asyncio.Future[None] | None = None
        self._has_ended = False

    def __len__(self) -> int:
        """How many wait to be taken."""
        return len(self._messages)

    def put(self, message: StreamMessage) -> None:
        self._messages.append(message)
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self._has_ended = True
        self._wake()

    async def take(self) -> list[StreamMessage]:
        """All that have come since the last call, at least one; none after the end."""
        if not self._messages and not self._has_ended:
            self._waiting = self._loop.create_future()
            await self._waiting
        taken, self._messages = self._messages, []
        return taken

    def _wake(self) -> None:
        if (waiting := self._waiting) is not None:
            self._waiting = None
            if not waiting.done():
                waiting.set_result(None)


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """One request from its submission until its caller is answered.

    Attributes:
        request_id: The owner's name for it, unique among the running requests of that owner.
        wire_id: The stages' name for it, never used for another request.
        terminals: The stages whose results make up its result; empty if the first result is that.
        outcome: Its result, or the error it ended with.
        chunks: The messages to its caller; None if the caller does not stream.
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
    chunks: Chunks | None
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
