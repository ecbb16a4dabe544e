"""What a request to this pipeline asks for, read from its metadata, inputs and parameters."""

from __future__ import annotations

from typing import Any, Literal

from sglang_omni.proto import OmniRequest, RequestError

Task = Literal["chat", "completion", "speech", "transcription", "translation"]
TASKS: tuple[Task, ...] = ("chat", "completion", "speech", "transcription", "translation")


def task_of(request: OmniRequest) -> Task:
    """What is to be done: ``metadata["task"]``, else what the inputs suggest.

    Raises:
        RequestError: There is no such task.
    """
    task = request.metadata.get("task")
    if task in TASKS:
        return task
    if task is not None:
        raise RequestError(f"unknown task {task!r}: expected one of {', '.join(TASKS)}", param="task")
    inputs = request.inputs if isinstance(request.inputs, dict) else {}
    if "text" in inputs:
        return "speech"
    if "audio" in inputs:
        return "transcription"
    if "prompt" in inputs or "prompt_token_ids" in inputs:
        return "completion"
    return "chat"


def answers_in_text(request: OmniRequest) -> bool:
    """Whether the caller reads the answer while it is written."""
    return "text" in output_modalities(request)


def answers_in_speech(request: OmniRequest) -> bool:
    """Whether the language model's answer is also to be spoken."""
    return task_of(request) in ("chat", "completion") and "audio" in output_modalities(request)


def output_modalities(request: OmniRequest) -> list[str]:
    return request.metadata.get("output_modalities") or ["text"]


def wants_stream(request: OmniRequest) -> bool:
    """Whether the caller takes partial results."""
    return bool(request.params.get("stream"))


def stage_params(request: OmniRequest, stage: str) -> dict[str, Any]:
    """The request's parameters as one stage sees them: the general ones, then that stage's own."""
    own = (request.params.get("stage_params") or {}).get(stage) or {}
    return {**request.params, **own}
