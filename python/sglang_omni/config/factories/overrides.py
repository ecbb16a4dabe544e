"""Settings from the command line: of one stage, or of every stage whose factory takes them."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from sglang_omni.config.factories.factory_args import stage_factory_path
from sglang_omni.config.imports import import_callable, signature_of
from sglang_omni.config.nearest import did_you_mean
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.strict import error_text


def override_stage(config: PipelineConfig, setting: str) -> None:
    """Apply ``STAGE.NAME=VALUE``.

    Args:
        config: The pipeline, which is changed.
        setting: NAME is a field of ``StageConfig`` or an argument of the stage's factory, VALUE is YAML:
            ``thinker.gpu=[0, 1]``, ``preprocess.max_images=8``, ``thinker.engine=omni``.

    Raises:
        ValueError: ``setting`` has another form, or the pipeline has no such stage or setting.
    """
    path, equals, text = setting.partition("=")
    name, dot, field = path.strip().partition(".")
    if not (equals and dot and name and field):
        raise ValueError(f"{setting!r}: expected STAGE.NAME=VALUE, as in thinker.max_running_requests=8")
    stages = {stage.name: stage for stage in config.stages}
    if name not in stages:
        raise ValueError(f"{setting!r}: the pipeline has no stage {name!r}{did_you_mean(name, stages)}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(f"{setting!r}: the value is not valid YAML: {exc}") from exc
    stage = stages[name]
    if (info := StageConfig.model_fields.get(field)) is not None:
        declared: Any = Annotated[info.annotation, info]
        try:
            # An assignment alone would not turn a map into the field's own model.
            value = TypeAdapter[Any](declared).validate_python(value)
        except ValidationError as exc:
            problems = "; ".join(error_text(error) for error in exc.errors(include_url=False))
            raise ValueError(f"{setting!r}: {problems}") from exc
        setattr(stage, field, value)
        return
    taken = _parameters(stage)
    if field not in taken:
        hint = did_you_mean(field, {*taken, *StageConfig.model_fields})
        raise ValueError(f"{setting!r}: stage {name!r} has no {field!r}{hint}")
    _override(config, stage, field, value)


def override_stages(config: PipelineConfig, argument: str, value: Any) -> list[str]:
    """Set a factory argument of every stage whose factory takes it.

    Args:
        config: The pipeline, which is changed.
        argument: The argument's name. ``tp_size`` is set for stages whose factories take ``tp_rank``.
        value: Its value.

    Returns:
        The names of the changed stages.
    """
    changed = []
    for stage in config.stages:
        if argument == "tp_size" and "tp_rank" in _parameters(stage):
            stage.tp_size = value
            if isinstance(stage.gpu, int) and value > 1:
                stage.gpu = list(range(stage.gpu, stage.gpu + value))
        elif argument != "tp_size" and argument in _parameters(stage):
            _override(config, stage, argument, value)
        else:
            continue
        changed.append(stage.name)
    return changed


def takers(config: PipelineConfig, argument: str) -> list[str]:
    """The names of the stages whose factories take an argument."""
    return [stage.name for stage in config.stages if argument in _parameters(stage)]


def _override(config: PipelineConfig, stage: StageConfig, argument: str, value: Any) -> None:
    own = config.runtime_overrides.get(stage.name, {})
    config.runtime_overrides = {**config.runtime_overrides, stage.name: {**own, argument: value}}


def _parameters(stage: StageConfig) -> frozenset[str]:
    path, field = stage_factory_path(stage)
    factory = import_callable(path, stage=stage.name, field=field)
    names = signature_of(factory).names
    if names is not None:
        return names
    try:
        return frozenset(inspect.signature(factory).parameters)
    except ValueError:  # a builtin without a signature
        return frozenset()
