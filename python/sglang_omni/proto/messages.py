"""Control-plane messages: dataclasses in both processes, msgpack maps with a ``type`` in between.

``to_dict`` leaves out fields at their defaults, which keeps the common message small. ``parse_message``
checks a map against the annotations of its class and refuses it with a ``ValueError`` that names the type and
the field, so that a receiver can log the message and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NotRequired, Self, TypeVar, dataclass_transform, get_args, get_type_hints

from sglang_omni.proto.errors import UNAVAILABLE, RequestError, Unavailable
from sglang_omni.proto.request import OmniRequest, RequestState, StagePayload

__all__ = [
    "AbortMessage",
    "CompleteMessage",
    "DataReadyBatchMessage",
    "DataReadyMessage",
    "EndpointsMessage",
    "FlushCacheMessage",
    "Message",
    "MoreInputMessage",
    "OmniRequest",
    "ProfilerStartMessage",
    "ProfilerStopMessage",
    "ProgressMessage",
    "RequestState",
    "ShutdownMessage",
    "StagePayload",
    "StatsMessage",
    "StreamBatchMessage",
    "StreamMessage",
    "SubmitMessage",
    "parse_message",
]

_T = TypeVar("_T")


class _Message:
    type: ClassVar[str]
    # Fields that ``to_dict`` leaves out while they are at their default.
    _defaults: ClassVar[tuple[tuple[str, Any], ...]]

    def to_dict(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"type": self.type, **self.__dict__}
        for name, default in self._defaults:
            # Not ``==``: a result may be an array, whose == is not a bool.
            if wire[name] is default:
                del wire[name]
        return wire

    @classmethod
    def from_dict(cls, wire: dict[str, Any]) -> Self:
        """The message a map stands for. Fields that the class does not have are ignored.

        Raises:
            ValueError: A field is missing or of the wrong type.
        """
        try:
            return cls(**_reader(cls)(wire))  # type: ignore[arg-type]  # a class is hashable
        except ValueError as exc:
            raise _described(cls.type, exc) from None


@dataclass_transform()
def _message(cls: type[_T]) -> type[_T]:
    """A dataclass that knows which fields ``to_dict`` may leave out."""
    made: Any = dataclass(cls)
    made._defaults = tuple((item.name, item.default) for item in fields(made) if item.default is not MISSING)
    return cls


@cache
def _reader(cls: Any) -> Callable[[Any], dict[str, Any]]:
    """The strict check of a message's map: faster in pydantic's core than it would be here."""
    # Imported late: the client has no need of pydantic, whose import takes a tenth of a second.
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

    hints = get_type_hints(cls)
    expected = {
        item.name: hints[item.name]
        if item.default is MISSING and item.default_factory is MISSING
        else NotRequired[hints[item.name]]
        for item in fields(cls)
        if item.compare  # The others are the receiver's own.
    }
    make: Any = TypedDict  # mypy knows only TypedDicts whose fields are written out.
    shape = make(cls.__name__, expected)
    shape.__pydantic_config__ = ConfigDict(strict=True)
    return TypeAdapter(shape).validator.validate_python


def _described(kind: str, error: Any) -> ValueError:
    """pydantic's first complaint in one line, without the value, which may be long or secret."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return ValueError(f"{kind} message lacks the field {where!r}")
    return ValueError(f"{kind} message: {where}: {first['msg']}, got {type(first['input']).__name__}")


@_message
class SubmitMessage(_Message):
    """Coordinator -> entry stage: a new request.

    ``data`` is a StagePayload; ``replicas`` serve the request for its whole life.
    """

    type: ClassVar[str] = "submit"

    request_id: str
    data: Any
    replicas: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        wire = super().to_dict()
        if isinstance(self.data, StagePayload):
            wire["data"] = {"stage_payload": self.data.to_dict()}
        return wire

    @classmethod
    def from_dict(cls, wire: dict[str, Any]) -> Self:
        message = super().from_dict(wire)
        match message.data:
            case {"stage_payload": payload, **others} if not others:
                if not isinstance(payload, dict):
                    raise ValueError(
                        f"submit message: stage_payload must be a map, got {type(payload).__name__}"
                    )
                message.data = StagePayload.from_dict(payload)
        return message


@_message
class MoreInputMessage(_Message):
    """Coordinator -> the stage that takes input streams: the next chunk of a request's input, or its end.

    Attributes:
        request_id: The request.
        chunk: What the caller has added; None at the end.
        chunk_id: The chunk's number, from 0; None at the end.
        replicas: The replicas that serve the request, as in its SubmitMessage.
    """

    type: ClassVar[str] = "more_input"

    request_id: str
    chunk: Any = None
    chunk_id: int | None = None
    replicas: dict[str, int] | None = None


@_message
class DataReadyMessage(_Message):
    """Stage -> stage: a payload, a stream chunk (``chunk_id`` set) or a stream's end.

    Attributes:
        request_id: The request.
        from_stage: The instance that sends.
        to_stage: The instance that receives.
        shm_metadata: What the relay's put returned: all a peer needs to read the data.
        chunk_id: The chunk's number; None for a payload and for a stream's end.
        is_done: True if this ends the stream.
        error: Why the stream broke.
        replicas: The replicas that serve the request, as in its SubmitMessage.
        trusted: Set by the receiver, never read from the wire. False if the message came over a network: the
            data that it announces may then name registered classes only.
    """

    type: ClassVar[str] = "data_ready"

    request_id: str
    from_stage: str
    to_stage: str
    shm_metadata: dict[str, Any] | None
    chunk_id: int | None = None
    is_done: bool = False
    error: str | None = None
    replicas: dict[str, int] | None = None
    trusted: bool = field(default=True, compare=False)


@_message
class DataReadyBatchMessage(_Message):
    """Stage -> stage: what several DataReadyMessages of chunks would say, as of an engine's step.

    The chunks travel inside of the message.

    Attributes:
        from_stage: The instance that sends.
        to_stage: The instance that receives.
        chunks: ``(request_id, shm_metadata, chunk_id, replicas)``, those of a request in order.
        trusted: As in a DataReadyMessage.
    """

    type: ClassVar[str] = "data_ready_batch"

    from_stage: str
    to_stage: str
    chunks: list[tuple[str, dict[str, Any], int, dict[str, int] | None]]
    trusted: bool = field(default=True, compare=False)

    def messages(self) -> Iterator[DataReadyMessage]:
        """The same, one by one."""
        for request_id, metadata, chunk_id, replicas in self.chunks:
            yield DataReadyMessage(
                request_id,
                self.from_stage,
                self.to_stage,
                metadata,
                chunk_id=chunk_id,
                replicas=replicas,
                trusted=self.trusted,
            )


@_message
class CompleteMessage(_Message):
    """Stage -> coordinator: a terminal stage's result, or any stage's failure.

    ``from_stage`` is the instance of the stage. ``error_info`` holds the fields of a RequestError if the
    failure is the request's own fault, or of an ``Unavailable``.
    """

    type: ClassVar[str] = "complete"

    request_id: str
    from_stage: str
    success: bool
    result: Any = None
    error: str | None = None
    error_info: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, wire: dict[str, Any]) -> Self:
        message = super().from_dict(wire)
        if message.error_info is not None:
            RequestError.from_dict(message.error_info)  # refuses what cannot be raised again
        return message

    def exception(self) -> Exception:
        """The failure as the request's caller gets it."""
        if self.error_info is not None:
            error = RequestError.from_dict(self.error_info)
            return Unavailable(error.message) if error.status == UNAVAILABLE else error
        return RuntimeError(f"stage {self.from_stage!r}: {self.error or 'unknown error'}")


@_message
class StreamMessage(_Message):
    """Stage -> coordinator: one chunk of partial output for the caller.

    ``from_stage`` is the stage's name, not its instance: callers know nothing of replicas.
    """

    type: ClassVar[str] = "stream"

    request_id: str
    from_stage: str
    chunk: Any
    stage_id: int | None = None
    stage_name: str | None = None
    modality: str | None = None
    chunk_id: int | None = None


@_message
class StreamBatchMessage(_Message):
    """Stage -> coordinator: what several StreamMessages of one stage would say, as of an engine's step.

    Attributes:
        from_stage: The stage's name, not its instance.
        chunks: ``(request_id, chunk, modality, chunk_id)``, those of a request in order.
    """

    type: ClassVar[str] = "stream_batch"

    from_stage: str
    chunks: list[tuple[str, Any, str | None, int | None]]

    def messages(self) -> Iterator[StreamMessage]:
        """The same, one by one."""
        stage = self.from_stage
        for request_id, chunk, modality, chunk_id in self.chunks:
            yield StreamMessage(request_id, stage, chunk, None, stage, modality, chunk_id)


@_message
class ProgressMessage(_Message):
    """Stage -> coordinator: which instances answer for which requests, as differences.

    Attributes:
        from_stage: The instance that reports.
        changes: ``(request_id, instance, difference)``, sent in batches. Differences commute, so messages of
            several stages may arrive in any order. When a process dies, the requests whose count is positive
            for one of its instances are lost with it.
        spans: ``(request_id, work, wait, began)`` for each request that ``from_stage`` has finished with:
            seconds of work on the request, seconds for which the request was there besides, and when it came,
            in Unix time by the clock of the stage's host. Nothing of that request comes from this instance
            afterwards.
        details: For those of them that are traced, what their stages did when: a ``VisitDetail`` by request.
        late_s: Seconds since the first of the changes, if the stage was kept from reporting them in time.
    """

    type: ClassVar[str] = "progress"

    from_stage: str
    changes: list[tuple[str, str, int]]
    spans: list[tuple[str, float, float, float]] = field(default_factory=list)
    details: dict[str, dict[str, Any]] | None = None
    late_s: float = 0.0


@_message
class StatsMessage(_Message):
    """Stage -> coordinator: gauges and counters of its scheduler and its relays, by name."""

    type: ClassVar[str] = "stats"

    from_stage: str
    stats: dict[str, int | float]


@_message
class AbortMessage(_Message):
    """Coordinator -> every stage: stop working on a request and free what it holds."""

    type: ClassVar[str] = "abort"

    request_id: str


@_message
class ShutdownMessage(_Message):
    """Coordinator -> stage: finish and leave."""

    type: ClassVar[str] = "shutdown"


@_message
class EndpointsMessage(_Message):
    """Coordinator -> stage: the present ``tcp://`` endpoints of all known instances on other hosts."""

    type: ClassVar[str] = "endpoints"

    endpoints: dict[str, str]

    @classmethod
    def from_dict(cls, wire: dict[str, Any]) -> Self:
        message = super().from_dict(wire)
        for instance, endpoint in message.endpoints.items():
            if not endpoint.startswith("tcp://"):
                raise ValueError(
                    f"endpoints message: endpoints.{instance}: must begin with tcp://, got {endpoint!r:.80}"
                )
        return message


@_message
class FlushCacheMessage(_Message):
    """Coordinator -> stage: drop cached data that no request uses."""

    type: ClassVar[str] = "flush_cache"


@_message
class ProfilerStartMessage(_Message):
    """Coordinator -> stage: start a torch profile; ``{run_id}`` and ``{stage}`` are filled in the path.

    ``activities`` are of ``CPU`` and ``GPU``; None for all that the stage's process has.
    """

    type: ClassVar[str] = "profiler_start"

    run_id: str
    trace_path_template: str
    activities: list[str] | None = None


@_message
class ProfilerStopMessage(_Message):
    """Coordinator -> stage: stop the profile and write it."""

    type: ClassVar[str] = "profiler_stop"

    run_id: str | None = None


Message = (
    SubmitMessage
    | MoreInputMessage
    | DataReadyMessage
    | DataReadyBatchMessage
    | CompleteMessage
    | StreamMessage
    | StreamBatchMessage
    | ProgressMessage
    | StatsMessage
    | AbortMessage
    | ShutdownMessage
    | EndpointsMessage
    | FlushCacheMessage
    | ProfilerStartMessage
    | ProfilerStopMessage
)

_BY_TYPE: dict[Any, Any] = {message.type: message for message in get_args(Message)}


def build_checks() -> None:
    """Builds the checks of all messages. Otherwise the first message of each type waits for its check."""
    for message in _BY_TYPE.values():
        _reader(message)


def parse_message(wire: Any) -> Message:
    """The message a wire map stands for.

    Raises:
        ValueError: ``wire`` is not a dict, its ``type`` is unknown, or a field is missing or mistyped.
    """
    if not isinstance(wire, dict):
        raise ValueError(f"a message must be a map, got {type(wire).__name__}")
    kind = wire.get("type")
    message = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if message is None:
        raise ValueError(f"unknown message type: {kind!r}")
    return message.from_dict(wire)
