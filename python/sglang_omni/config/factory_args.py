"""What a stage's factory is called with."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import Any

from sglang_omni.config.imports import import_callable
from sglang_omni.config.nearest import did_you_mean
from sglang_omni.config.schema import PipelineConfig, StageConfig

#: The arguments that the runtime fills in if a factory takes them and the config does not set them.
INJECTED = ("model_path", "gpu_id", "total_gpu_memory_fraction", "tp_rank", "tp_size", "nccl_port")


def resolve_stage_factory_args(
    stage: StageConfig, config: PipelineConfig, *, gpu_id: int | None = None
) -> dict[str, Any]:
    """The keyword arguments of a stage's factory, which is imported for its signature.

    Args:
        stage: One of ``config.stages``.
        config: The pipeline.
        gpu_id: The GPU of the rank being built; the stage's first GPU when None.

    Raises:
        ImportError: the factory cannot be imported.
        ValueError: an argument that the factory does not take, or a typed value without a mapping.
    """
    path, field = stage_factory_path(stage)
    factory = import_callable(path, stage=stage.name, field=field)
    return complete_factory_args(factory, merge_factory_args(stage, config), stage, config, gpu_id=gpu_id)


def stage_factory_path(stage: StageConfig) -> tuple[str, str]:
    """The dotted path of a stage's factory, and the config field that holds it."""
    if stage.executor is not None:
        return stage.executor.factory, "executor.factory"
    assert stage.factory is not None  # validate_pipeline refuses a stage with neither
    return stage.factory, "factory"


def merge_factory_args(stage: StageConfig, config: PipelineConfig) -> dict[str, Any]:
    """The arguments that the config sets, found without importing the factory.

    ``factory_args`` are the stage's defaults. ``runtime_overrides`` and the stage's typed runtime values go
    over them, mappings key by key; neither goes over the other.

    Raises:
        ValueError: A typed runtime value is set and ``runtime_arg_map`` does not say where it goes, or
            ``runtime_overrides`` give the same argument another value.
    """
    args = stage.executor.args if stage.executor is not None else stage.factory_args
    overrides = config.runtime_overrides.get(stage.name, {})
    merged = _merged(args, overrides)
    for name, typed in _typed_arguments(stage):
        _refuse_conflict(stage, name, typed, overrides)
        merged = _merged(merged, typed)
    return merged


def _typed_arguments(stage: StageConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each typed runtime value that is set for the factory: its field of the stage, and the argument."""
    runtime, targets = stage.runtime, stage.runtime_arg_map
    for name, value in (("max_seq_len", runtime.max_seq_len), ("video_fps", runtime.video_fps)):
        if value is None:
            continue
        if name not in targets:
            raise ValueError(
                f"stage {stage.name!r}: runtime.{name} is set but runtime_arg_map does not name the factory "
                f"argument that receives it; add runtime_arg_map: {{{name}: ARGUMENT}}"
            )
        yield f"runtime.{name}", {targets[name]: value}
    if (fraction := runtime.sglang_server_args.mem_fraction_static) is not None:
        target = targets.get("mem_fraction_static")
        field = "runtime.sglang_server_args.mem_fraction_static"
        if target is not None:
            yield field, {target: fraction}
        else:
            yield field, {"server_args_overrides": {"mem_fraction_static": fraction}}
    budget = runtime.resources.total_gpu_memory_fraction
    if budget is not None and "total_gpu_memory_fraction" in targets:
        field = "runtime.resources.total_gpu_memory_fraction"
        yield field, {targets["total_gpu_memory_fraction"]: budget}


def _refuse_conflict(
    stage: StageConfig, field: str, typed: Mapping[str, Any], overrides: Mapping[str, Any], inside: str = ""
) -> None:
    for argument in typed.keys() & overrides.keys():
        value, other = typed[argument], overrides[argument]
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            _refuse_conflict(stage, field, value, other, f"{inside}{argument}.")
        elif value != other:
            raise ValueError(
                f"stage {stage.name!r}: {field}={value} conflicts with runtime_overrides, which set "
                f"{inside}{argument}={other!r}; set one of them"
            )


def refuse_unread_gpu(stage: StageConfig, accepts: Callable[[str], bool], arguments: Collection[str]) -> None:
    """Raise ValueError for a stage that is placed on a GPU of which its factory would not hear.

    Args:
        stage: The stage.
        accepts: Whether its factory takes an argument of this name.
        arguments: The names of those that the config sets.
    """
    if stage.gpu is None or accepts("gpu_id") or "device" in arguments:
        return
    path, field = stage_factory_path(stage)
    raise ValueError(
        f"stage {stage.name!r}: gpu={stage.gpu}, but {field} {path} takes no gpu_id, so that the stage would "
        "compute on the CPU; leave gpu out, or have the factory take gpu_id: the GPU's id, None for the CPU"
    )


def complete_factory_args(
    factory: Callable[..., Any],
    args: Mapping[str, Any],
    stage: StageConfig,
    config: PipelineConfig,
    *,
    gpu_id: int | None = None,
    tp_rank: int = 0,
    nccl_port: int | None = None,
) -> dict[str, Any]:
    """``args`` with ``model_path``, ``gpu_id``, ``total_gpu_memory_fraction``, ``tp_rank``, ``tp_size`` and
    ``nccl_port`` where ``factory`` has such a parameter and nothing set it.

    A factory that takes ``**kwargs`` gets what the stage says of where it runs: ``gpu_id`` on a GPU, and the
    ranks' three if it is split over ranks.

    Raises:
        ValueError: ``args`` holds one that the factory does not take.
    """
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in args:
        if name not in parameters and not takes_any:
            path, _ = stage_factory_path(stage)
            raise ValueError(
                f"stage {stage.name!r}: factory {path} takes no argument {name!r}"
                f"{did_you_mean(name, parameters)}"
            )
    budget = stage.runtime.resources.total_gpu_memory_fraction
    values = (
        *(config.model_path, gpu_id if gpu_id is not None else next(iter(stage.gpu_ids), None), budget),
        *(tp_rank, stage.tp_size, nccl_port),
    )
    injected = dict(zip(INJECTED, values, strict=True))
    wanted = set(parameters)
    if takes_any:
        wanted |= {"gpu_id"} if injected["gpu_id"] is not None else set()
        wanted |= {"tp_rank", "tp_size", "nccl_port"} if stage.tp_size > 1 else set()
    if budget is None:
        wanted.discard("total_gpu_memory_fraction")
    return {**{name: value for name, value in injected.items() if name in wanted}, **args}


def apply_env_defaults(defaults: Mapping[str, str], env: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that are not set yet. Call it before factories are imported."""
    for name, value in defaults.items():
        env.setdefault(name, value)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top; mappings that both hold under a key are merged in turn."""
    merged = dict(base)
    for key, value in over.items():
        current = merged.get(key)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            value = _merged(current, value)
        merged[key] = value
    return merged
