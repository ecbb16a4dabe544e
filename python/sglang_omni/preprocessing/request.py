"""Access to a request: its task, inputs, modalities and parameters, checked as they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.proto.tasks import TASKS, Task


def task_of(request: OmniRequest) -> Task:
    """The task in ``metadata["task"]``, else the task that the inputs imply.

    Raises:
        RequestError: The task is unknown.
    """
    task = request.metadata.get("task")
    if task in TASKS:
        return task
    if task is not None:
        raise RequestError(
            f"unknown task {task!r}: expected one of {', '.join(TASKS)}",
            param="task",
            code="unsupported_task",
        )
    inputs = request.inputs if isinstance(request.inputs, dict) else {}
    if "text" in inputs:
        return "speech"
    if "audio" in inputs:
        return "transcription"
    if "prompt" in inputs or "prompt_token_ids" in inputs:
        return "completion"
    return "chat"


def named_inputs(request: OmniRequest, names: Collection[str]) -> Mapping[str, Any]:
    """The inputs by name; a bare text becomes a user's message.

    Raises:
        RequestError: The inputs have no names, or a name not in ``names``.
    """
    inputs = request.inputs
    if isinstance(inputs, str):
        inputs = {"messages": [{"role": "user", "content": inputs}]}
    if not isinstance(inputs, Mapping):
        raise RequestError(
            f"inputs must be an object or text, got {type(inputs).__name__}", code="invalid_type"
        )
    if unknown := [name for name in inputs if name not in names]:
        raise RequestError(
            f"this model takes no {', '.join(unknown)}, only {', '.join(names)}",
            param=unknown[0],
            code="unknown_parameter",
        )
    return inputs


def without_inputs(payload: StagePayload, data: Any) -> StagePayload:
    """The next stage's payload, with ``data``: the request's inputs are dropped, and the task that they may
    imply is kept."""
    request = payload.request
    metadata = {**request.metadata, "task": task_of(request)}
    slim = OmniRequest(inputs=None, params=request.params, metadata=metadata)
    return StagePayload(payload.request_id, slim, data)


def answers_in_text(request: OmniRequest) -> bool:
    """True if the caller wants the answer as text."""
    return "text" in output_modalities(request)


def answers_in_speech(request: OmniRequest) -> bool:
    """True if the caller wants the language model's answer as speech."""
    return task_of(request) in ("chat", "completion") and "audio" in output_modalities(request)


def output_modalities(request: OmniRequest) -> list[str]:
    """Modalities of the answer; text by default.

    Raises:
        RequestError: The modalities are not a list of "text" and "audio".
    """
    modalities = request.metadata.get("output_modalities") or ["text"]
    if not isinstance(modalities, list) or not all(kind in ("text", "audio") for kind in modalities):
        raise RequestError(
            f"modalities may be 'text' and 'audio', got {modalities!r}",
            param="modalities",
            code="invalid_value",
        )
    return modalities


def wants_stream(request: OmniRequest) -> bool:
    """True if the caller takes partial results."""
    return bool(request.params.get("stream"))


def stage_params(request: OmniRequest, stage: str) -> dict[str, Any]:
    """The request's general parameters, overridden by those of the stage.

    Raises:
        RequestError: The stage's parameters are not an object.
    """
    own = mapping_param(mapping_param(request.params, "stage_params"), stage, "stage_params.")
    return {**request.params, **own}


def flag_param(params: Mapping[str, Any], name: str) -> bool:
    """A boolean parameter; false if it is not given.

    Raises:
        RequestError: The value is not a boolean.
    """
    value = params.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f"{name} must be true or false, got {value!r}", param=name, code="invalid_type")
    return bool(value)


def mapping_param(params: Mapping[str, Any], name: str, prefix: str = "") -> Mapping[str, Any]:
    """A parameter that holds an object; empty if it is not given.

    Args:
        prefix: Precedes the name in error messages.

    Raises:
        RequestError: The value is not an object.
    """
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        param = prefix + name
        raise RequestError(
            f"{param} must be an object, got {type(value).__name__}", param=param, code="invalid_type"
        )
    return value
