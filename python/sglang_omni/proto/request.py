"""A user's request, and the payload of it that travels from stage to stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypedDict

#: The name in a request's metadata that has stages report what they do with it when.
TRACED = "traced"

#: Stage -> the number of its replica that serves a request; None if no stage is replicated.
Replicas = dict[str, int] | None


class RequestState(Enum):
    """The state of a request in the coordinator: PENDING -> RUNNING -> COMPLETED | FAILED | ABORTED."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        return self in (RequestState.COMPLETED, RequestState.FAILED, RequestState.ABORTED)


@dataclass
class OmniRequest:
    """A user's request as it enters the pipeline.

    Attributes:
        inputs: The input of the entry stage: a prompt, messages, token ids, media.
        params: Sampling and stage parameters, by name.
        metadata: Values for stages and routing that no model consumes.
    """

    inputs: Any
    params: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "params": self.params, "metadata": self.metadata}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> OmniRequest:
        return cls(
            inputs=fields.get("inputs"),
            params=_mapping(fields, "params", cls),
            metadata=_mapping(fields, "metadata", cls),
        )


@dataclass
class StagePayload:
    """One stage's output on its way to the next, with its request.

    The entry stage receives ``data={"raw_inputs": request.inputs}``.
    """

    request_id: str
    request: OmniRequest
    data: Any

    def to_dict(self) -> dict[str, Any]:
        return {"request_id": self.request_id, "request": self.request.to_dict(), "data": self.data}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> StagePayload:
        request_id = fields.get("request_id")
        if not isinstance(request_id, str):
            raise ValueError(f"StagePayload.request_id must be a str, got {type(request_id).__name__}")
        return cls(
            request_id=request_id,
            request=OmniRequest.from_dict(_mapping(fields, "request", cls)),
            data=fields.get("data"),
        )


def _mapping(fields: Mapping[str, Any], name: str, owner: type) -> dict[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{owner.__name__}.{name} must be a dict, got {type(value).__name__}")
    return value


class StageTime(TypedDict):
    """Seconds of a request in a stage.

    Stages work on a request at the same time, so the sum over stages may exceed the time of the whole
    request.

    Attributes:
        work: Work on the request.
        wait: Waiting for its turn, for its input, or for room to send its output.
    """

    work: float
    wait: float
