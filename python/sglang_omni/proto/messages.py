"""Control-plane messages: dataclasses on both ends, msgpack maps with a ``type`` in between.

``to_dict`` leaves out fields at their defaults, so that the common message is small;
``parse_message`` refuses unknown types and wrongly typed fields with a ``ValueError`` that names
them, so that a receiver can log the message and go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from sglang_omni.proto.errors import RequestError
from sglang_omni.proto.request import OmniRequest, RequestState, StagePayload

__all__ = [
    "AbortMessage",
    "CompleteMessage",
    "DataReadyMessage",
    "EndpointsMessage",
    "Message",
    "OmniRequest",
    "ProfilerStartMessage",
    "ProfilerStopMessage",
    "ProgressMessage",
    "RequestState",
    "ShutdownMessage",
    "StagePayload",
    "StatsMessage",
    "StreamMessage",
    "SubmitMessage",
    "parse_message",
]

# Spelled out here, because "type" means something else inside the messages.
_Types = tuple[type, ...]
_ANY: _Types = (object,)
_NONE = type(None)
_T = TypeVar("_T")


def _type_name(value: Any) -> str:
    return type(value).__name__


class _Message:
    type: ClassVar[str]
    # Field name -> types accepted from the wire. Each message states its own.
    _accepted: ClassVar[dict[str, _Types]]
    # From ``_accepted``: the fields that the wire must have, in the order of the constructor, and the others.
    _required: ClassVar[tuple[tuple[str, _Types], ...]]
    _optional: ClassVar[tuple[tuple[str, _Types], ...]]
    # Fields that stay at home while they are at their default.
    _defaults: ClassVar[tuple[tuple[str, Any], ...]]

    def to_dict(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"type": self.type, **self.__dict__}
        for name, default in self._defaults:
            if wire[name] == default:
                del wire[name]
        return wire

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        required = []
        for name, types in cls._required:
            if name not in wire:
                raise ValueError(f"{cls.type} message lacks the field {name!r}")
            value = wire[name]
            if type(value) not in types and types is not _ANY:
                _check(cls.type, name, value, types)
            required.append(value)
        optional = {}
        for name, types in cls._optional:
            if name in wire:
                value = optional[name] = wire[name]
                if type(value) not in types and types is not _ANY:
                    _check(cls.type, name, value, types)
        return cls(*required, **optional)


def _check(kind: str, name: str, value: Any, types: _Types) -> None:
    """Accept instances of subclasses, but a bool is no int: a flag in a number's place is malformed."""
    if not isinstance(value, types) or isinstance(value, bool):
        expected = " or ".join("None" if t is _NONE else t.__name__ for t in types)
        raise ValueError(f"{kind} message: {name} must be {expected}, got {_type_name(value)}")


def _check_replicas(kind: str, replicas: dict[Any, Any]) -> None:
    for stage, replica in replicas.items():
        if type(stage) is not str or type(replica) is not int:
            raise ValueError(f"{kind} message: replicas: not a stage and a number: {stage!r}: {replica!r}")


@dataclass_transform()
def _message(cls: type[_T]) -> type[_T]:
    """A dataclass that knows what its wire form needs."""
    made: Any = dataclass(cls)
    made._defaults = tuple((item.name, item.default) for item in fields(made) if item.default is not MISSING)
    required = [
        item.name for item in fields(made) if item.default is MISSING and item.default_factory is MISSING
    ]
    made._required = tuple((name, made._accepted[name]) for name in required)
    made._optional = tuple((name, types) for name, types in made._accepted.items() if name not in required)
    return cls


@_message
class SubmitMessage(_Message):
    """Coordinator -> entry stage: a new request. ``data`` is a StagePayload.

    ``replicas`` serve the request for its whole life.
    """

    type: ClassVar[str] = "submit"
    _accepted: ClassVar = {"request_id": (str,), "data": _ANY, "replicas": (dict, _NONE)}

    request_id: str
    data: Any
    replicas: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        data = self.data
        if isinstance(data, StagePayload):
            data = {"stage_payload": data.to_dict()}
        wire = {"type": self.type, "request_id": self.request_id, "data": data}
        if self.replicas:
            wire["replicas"] = self.replicas
        return wire

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        message = super().from_dict(wire)
        if message.replicas is not None:
            _check_replicas(cls.type, message.replicas)
        data = message.data
        if isinstance(data, dict) and data.keys() == {"stage_payload"}:
            payload = data["stage_payload"]
            if not isinstance(payload, Mapping):
                raise ValueError(f"submit message: stage_payload must be a map, got {_type_name(payload)}")
            message.data = StagePayload.from_dict(payload)
        return message


@_message
class DataReadyMessage(_Message):
    """Stage -> stage: a payload, a stream chunk (``chunk_id`` set) or a stream's end.

    ``from_stage`` and ``to_stage`` are instances of stages. ``shm_metadata`` is whatever the relay's put
    returned: all a peer needs to read the data. ``replicas`` are the request's, as in its SubmitMessage.
    ``trusted`` is the receiver's own: False where the message came over a network, so that what it announces
    may name no class that is not registered.
    """

    type: ClassVar[str] = "data_ready"
    _accepted: ClassVar = {
        "request_id": (str,),
        "from_stage": (str,),
        "to_stage": (str,),
        "shm_metadata": (dict, _NONE),
        "chunk_id": (int, _NONE),
        "is_done": (bool,),
        "error": (str, _NONE),
        "replicas": (dict, _NONE),
    }

    request_id: str
    from_stage: str
    to_stage: str
    shm_metadata: dict[str, Any] | None
    chunk_id: int | None = None
    is_done: bool = False
    error: str | None = None
    replicas: dict[str, int] | None = None
    trusted: bool = field(default=True, compare=False)

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        message = super().from_dict(wire)
        if message.replicas is not None:
            _check_replicas(cls.type, message.replicas)
        return message


@_message
class CompleteMessage(_Message):
    """Stage -> coordinator: a terminal stage's result, or any stage's failure.

    ``from_stage`` is the instance of the stage.
    ``error_info`` is a RequestError's fields, where the failure is the request's own fault.
    """

    type: ClassVar[str] = "complete"
    _accepted: ClassVar = {
        "request_id": (str,),
        "from_stage": (str,),
        "success": (bool,),
        "result": _ANY,
        "error": (str, _NONE),
        "error_info": (dict, _NONE),
    }

    request_id: str
    from_stage: str
    success: bool
    result: Any = None
    error: str | None = None
    error_info: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        # Never compared with its default: a result may be an array, whose == is not a bool.
        wire: dict[str, Any] = {
            "type": self.type,
            "request_id": self.request_id,
            "from_stage": self.from_stage,
            "success": self.success,
            "result": self.result,
        }
        if self.error is not None:
            wire["error"] = self.error
        if self.error_info is not None:
            wire["error_info"] = self.error_info
        return wire

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        message = super().from_dict(wire)
        if message.error_info is not None:
            RequestError.from_dict(message.error_info)  # refuses what cannot be raised again
        return message

    def exception(self) -> Exception:
        """What the request's caller gets of a failure."""
        if self.error_info is not None:
            return RequestError.from_dict(self.error_info)
        return RuntimeError(f"stage {self.from_stage!r}: {self.error or 'unknown error'}")


@_message
class StreamMessage(_Message):
    """Stage -> coordinator: one chunk of partial output for the caller.

    ``from_stage`` is the stage, of whichever replica: that is what the caller is to know.
    """

    type: ClassVar[str] = "stream"
    _accepted: ClassVar = {
        "request_id": (str,),
        "from_stage": (str,),
        "chunk": _ANY,
        "stage_id": (int, _NONE),
        "stage_name": (str, _NONE),
        "modality": (str, _NONE),
        "chunk_id": (int, _NONE),
    }

    request_id: str
    from_stage: str
    chunk: Any
    stage_id: int | None = None
    stage_name: str | None = None
    modality: str | None = None
    chunk_id: int | None = None


@_message
class ProgressMessage(_Message):
    """Stage -> coordinator: which instances of stages answer for which requests, as differences.

    ``changes`` holds ``[request_id, stage, difference]`` entries, sent in batches. Differences commute,
    so messages of several stages may arrive in any order. When a process dies, the requests whose
    count is positive for one of its stages are the ones it took with it.

    ``spans`` holds a ``[request_id, work, wait]`` entry for each request that ``from_stage`` has let go of:
    for how many seconds the stage worked on it, and for how many more it was there. Nothing of that request
    comes from this stage after it.
    """

    type: ClassVar[str] = "progress"
    _accepted: ClassVar = {"from_stage": (str,), "changes": (list,), "spans": (list,)}

    from_stage: str
    changes: list[list[Any]]
    spans: list[list[Any]] = field(default_factory=list)

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        message = super().from_dict(wire)
        for change in message.changes:
            match change:
                case [str(), str(), int() as difference] if not isinstance(difference, bool):
                    continue
            raise ValueError(f"progress message: changes: not [request_id, stage, difference]: {change!r}")
        for span in message.spans:
            match span:
                case [str(), float(), float()]:
                    continue
            raise ValueError(f"progress message: spans: not [request_id, work, wait]: {span!r}")
        return message


@_message
class StatsMessage(_Message):
    """Stage -> coordinator: what its scheduler and its relay hold and have done, as numbers by name."""

    type: ClassVar[str] = "stats"
    _accepted: ClassVar = {"from_stage": (str,), "stats": (dict,)}

    from_stage: str
    stats: dict[str, float]

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        message = super().from_dict(wire)
        for name, value in message.stats.items():
            if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"stats message: stats: not a name and a number: {name!r}: {value!r:.50}")
        return message


@_message
class AbortMessage(_Message):
    """Coordinator -> every stage: stop working on a request and free what it holds."""

    type: ClassVar[str] = "abort"
    _accepted: ClassVar = {"request_id": (str,)}

    request_id: str


@_message
class ShutdownMessage(_Message):
    """Coordinator -> stage: finish and leave."""

    type: ClassVar[str] = "shutdown"
    _accepted: ClassVar = {}


@_message
class EndpointsMessage(_Message):
    """Coordinator -> stage: where instances of stages on other hosts receive now, all that are known."""

    type: ClassVar[str] = "endpoints"
    _accepted: ClassVar = {"endpoints": (dict,)}

    endpoints: dict[str, str]

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        message = super().from_dict(wire)
        for instance, endpoint in message.endpoints.items():
            match instance, endpoint:
                case str(), str() if endpoint.startswith("tcp://"):
                    continue
            raise ValueError(
                f"endpoints message: endpoints: not an instance and where on tcp:// it is: "
                f"{instance!r}: {endpoint!r:.80}"
            )
        return message


@_message
class FlushCacheMessage(_Message):
    """Coordinator -> stage: forget what is cached and in no request's use."""

    type: ClassVar[str] = "flush_cache"
    _accepted: ClassVar = {}


@_message
class ProfilerStartMessage(_Message):
    """Coordinator -> stage: start a torch profile; ``{run_id}`` and ``{stage}`` are filled in the path."""

    type: ClassVar[str] = "profiler_start"
    _accepted: ClassVar = {"run_id": (str,), "trace_path_template": (str,)}

    run_id: str
    trace_path_template: str


@_message
class ProfilerStopMessage(_Message):
    """Coordinator -> stage: stop the profile and write it."""

    type: ClassVar[str] = "profiler_stop"
    _accepted: ClassVar = {"run_id": (str, _NONE)}

    run_id: str | None = field(default=None)


Message = (
    SubmitMessage
    | DataReadyMessage
    | CompleteMessage
    | StreamMessage
    | ProgressMessage
    | StatsMessage
    | AbortMessage
    | ShutdownMessage
    | EndpointsMessage
    | FlushCacheMessage
    | ProfilerStartMessage
    | ProfilerStopMessage
)

_BY_TYPE: dict[str, Any] = {
    message.type: message
    for message in (
        SubmitMessage,
        DataReadyMessage,
        CompleteMessage,
        StreamMessage,
        ProgressMessage,
        StatsMessage,
        AbortMessage,
        ShutdownMessage,
        EndpointsMessage,
        FlushCacheMessage,
        ProfilerStartMessage,
        ProfilerStopMessage,
    )
}


def parse_message(wire: Any) -> Message:
    """The message a wire map stands for.

    Raises:
        ValueError: ``wire`` is no map, its ``type`` is unknown, or a field is missing or mistyped.
    """
    if type(wire) is not dict and not isinstance(wire, Mapping):
        raise ValueError(f"a message must be a map, got {_type_name(wire)}")
    kind = wire.get("type")
    message = _BY_TYPE.get(kind) if type(kind) is str else None
    if message is None:
        raise ValueError(f"unknown message type: {kind!r}")
    return message.from_dict(wire)
