"""Pipelines of this machine as parts of a cascade: any that transcribes hears, any that speaks speaks."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from sglang_omni.cascade.part import PartConfig, PartName
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.config.schema.load import config_to_dict, describe_errors
from sglang_omni.proto.tasks import Task

_TASK: dict[PartName, Task] = {"asr": "transcription", "tts": "speech"}


def as_part(name: PartName, config: PipelineConfig) -> dict[str, Any]:
    """The ``pipeline`` of a part.

    Its processes are named after the part: beside them there are others of the same names.

    Raises:
        ValueError: It does not do what the part is for.
    """
    task, tasks = _TASK.get(name), declared(config, "tasks")
    if task is None:
        raise ValueError("a language model of this machine is given as model_path")
    if tasks is not None and task not in tasks:
        raise ValueError(f"{config.name} does {', '.join(tasks) or 'nothing of the kind'}, and not {task}")
    named = config.model_copy(deep=True)
    for stage in named.stages:
        process = stage.process or (stage.name if stage.tp_size == 1 else None)
        if process is not None and not process.startswith(f"{name}."):
            stage.process = f"{name}.{process}"
    return config_to_dict(named)


def part_pipeline(name: PartName, part: PartConfig) -> PipelineConfig:
    """The config of a part's pipeline.

    Raises:
        ValueError, ImportError, TypeError: It is none, or does not do what the part is for.
    """
    assert part.pipeline is not None
    try:
        config = PipelineConfig.from_dict(part.pipeline)
    except ValidationError as exc:
        raise ValueError("; ".join(describe_errors(exc))) from None
    return PipelineConfig.from_dict(as_part(name, config))


def declared(config: PipelineConfig, name: str) -> tuple[str, ...] | None:
    """What a pipeline serves, as its config says or its class; None: not said."""
    values = getattr(config.serves, name, None)
    values = getattr(config, name, None) if values is None else values
    return None if values is None else tuple(values)
