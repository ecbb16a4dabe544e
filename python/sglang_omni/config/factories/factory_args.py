"""The keyword arguments of a stage's factory."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from sglang_omni.config.imports import import_callable, signature_of
from sglang_omni.config.nearest import did_you_mean
from sglang_omni.config.schema import PipelineConfig, StageConfig


def resolve_stage_factory_args(
    stage: StageConfig, config: PipelineConfig, *, gpu_id: int | None = None
) -> dict[str, Any]:
    """The keyword arguments of a stage's factory, which is imported for its signature.

    Args:
        stage: One of ``config.stages``.
        config: The pipeline.
        gpu_id: The GPU of the rank being built; the stage's first GPU when None.

    Raises:
        ImportError: The factory cannot be imported.
        ValueError: The factory does not take an argument, or ``runtime_arg_map`` lacks a typed value.
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

    ``runtime_overrides`` and the stage's typed runtime values are merged over its ``factory_args``, mappings
    key by key. If the two set one argument, they must agree.

    Raises:
        ValueError: ``runtime_arg_map`` lacks a typed value that needs it, or ``runtime_overrides`` give an
            argument another value than a typed value does.
    """
    args = stage.executor.args if stage.executor is not None else stage.factory_args
    overrides = config.runtime_overrides.get(stage.name, {})
    merged = _merged(args, overrides)
    for name, typed in _typed_arguments(stage):
        _refuse_conflict(stage, name, typed, overrides)
        merged = _merged(merged, typed)
    return merged


def _typed_arguments(stage: StageConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each typed runtime value that goes to the factory: the field of the stage, and the argument with it."""
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
    """Raise ValueError if a stage is placed on a GPU and its factory takes none.

    Args:
        stage: The stage.
        accepts: True for the name of an argument that its factory takes.
        arguments: Names of the arguments that the config sets.
    """
    if stage.gpu is None or accepts("gpu_id") or "device" in arguments:
        return
    path, field = stage_factory_path(stage)
    raise ValueError(
        f"stage {stage.name!r}: gpu={stage.gpu}, but {field} {path} takes no gpu_id, so that the stage would "
        "compute on the CPU; leave gpu out, or have the factory take gpu_id: the GPU's id, None for the CPU"
    )


def unknown_argument(stage: StageConfig, name: str, taken: Iterable[str]) -> str:
    """The text of an error: a stage's factory takes the arguments ``taken``, but not ``name``."""
    path, field = stage_factory_path(stage)
    return f"stage {stage.name!r}: {field} {path} takes no argument {name!r}{did_you_mean(name, taken)}"


def injected_args(
    stage: StageConfig,
    config: PipelineConfig,
    *,
    gpu_id: int | None = None,
    tp_rank: int = 0,
    nccl_port: int | None = None,
) -> dict[str, Any]:
    """The arguments that the runtime fills in if a factory takes them and the config does not set them."""
    return {
        "model_path": config.model_path,
        "gpu_id": gpu_id if gpu_id is not None else next(iter(stage.gpu_ids), None),
        "total_gpu_memory_fraction": stage.runtime.resources.total_gpu_memory_fraction,
        "tp_rank": tp_rank,
        "tp_size": stage.tp_size,
        "nccl_port": nccl_port,
    }


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
    """``args``, and those of ``injected_args`` that ``factory`` takes and ``args`` does not set.

    A factory with ``**kwargs`` gets ``gpu_id`` on a GPU, and ``tp_rank``, ``tp_size`` and ``nccl_port`` if
    the stage is split over ranks.

    Args:
        factory: The stage's factory.
        args: The arguments that the config sets.
        stage: The stage.
        config: The pipeline.
        gpu_id: The GPU of the rank being built; the stage's first GPU when None.
        tp_rank: The rank being built.
        nccl_port: The port at which the ranks meet.

    Raises:
        ValueError: The factory does not take one of ``args``.
    """
    signature = signature_of(factory)
    for name in args:
        if not signature.accepts(name):
            raise ValueError(unknown_argument(stage, name, signature.names or ()))
    injected = injected_args(stage, config, gpu_id=gpu_id, tp_rank=tp_rank, nccl_port=nccl_port)
    wanted = set(signature.names or inspect.signature(factory).parameters)
    if signature.names is None:
        wanted |= {"gpu_id"} if injected["gpu_id"] is not None else set()
        wanted |= {"tp_rank", "tp_size", "nccl_port"} if stage.tp_size > 1 else set()
    if injected["total_gpu_memory_fraction"] is None:
        wanted.discard("total_gpu_memory_fraction")
    return {**{name: value for name, value in injected.items() if name in wanted}, **args}


def apply_env_defaults(defaults: Mapping[str, str], env: MutableMapping[str, str] = os.environ) -> None:
    """Set environment variables that are not set yet. Must be called before factories are imported."""
    for name, value in defaults.items():
        env.setdefault(name, value)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated with ``over``; mappings under one key are merged likewise."""
    merged = dict(base)
    for key, value in over.items():
        current = merged.get(key)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            value = _merged(current, value)
        merged[key] = value
    return merged
