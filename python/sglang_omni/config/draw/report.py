"""What ``sgl-omni config view``, ``validate`` and ``resolve`` show of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_jsonable_python

from sglang_omni.config.factories.factory_args import (
    injected_args,
    merge_factory_args,
    refuse_unread_gpu,
    resolve_stage_factory_args,
    stage_factory_path,
    unknown_argument,
)
from sglang_omni.config.imports import Signature, inspect_path
from sglang_omni.config.plan.edges import check_edges, check_inputs, check_terminals, merge_replicas
from sglang_omni.config.plan.instances import instances_of, is_placeholder, stage_instances, stage_of
from sglang_omni.config.plan.memory_plan import MemoryPlan
from sglang_omni.config.plan.pipeline import PipelinePlan, plan_pipeline, with_placeholder_nodes
from sglang_omni.config.plan.placement import gpu_label, resolve_stage_gpu_ids
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.load import ConfigError, config_to_dict
from sglang_omni.config.schema.pipeline import validate_pipeline
from sglang_omni.config.schema.relay_backends import is_class_path


def validate_config(config: PipelineConfig) -> PipelinePlan:
    """Check a config as a whole before any process starts: rules, plans, dotted paths, factory arguments.

    Modules named by the config are not run: they may import torch, and read the environment before
    ``env_defaults`` are set.

    Returns:
        The plan of a run. It is good until the config changes.

    Raises:
        ConfigError: One line for each problem, with the stage, the field and the nearest valid name.
    """
    try:
        validate_pipeline(config)
        check_inputs(config)
        check_terminals(config)
        plan = plan_pipeline(config)
        check_edges(config, plan.edges)
    except (ValueError, ImportError, TypeError) as exc:
        raise ConfigError(str(exc)) from exc
    problems = list(_path_problems(config))
    if problems:
        raise ConfigError("\n".join(problems))
    return plan


def resolve_config(
    config: PipelineConfig, *, on_any_host: bool = False, memory: MemoryPlan | None = None
) -> dict[str, Any]:
    """The config with everything the runtime derives from it, as plain values. Imports the factories.

    Args:
        config: The pipeline.
        on_any_host: True if a process without a ``node`` may be on any host, as under Ray, and not only on
            the coordinator's.
        memory: What the stages take of this host's GPUs, from ``fit_memory``; None for nothing.

    Raises:
        ConfigError: The config cannot run; one line for each problem.
        ImportError: A factory's module fails to import.
        ValueError: A factory does not take an argument that is set.
    """
    plan = validate_config(config)
    if on_any_host:
        plan = with_placeholder_nodes(plan)
    return {
        "config": config_to_dict(config),
        "entry_stage": config.resolved_entry_stage,
        "terminal_stages": config.terminal_stages,
        "processes": [
            {"name": name, "stages": stages, "gpu": gpu, "node": _node_text(plan.processes.node_of[name])}
            for name, stages, gpu in _processes(plan)
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "kinds": list(edge.kinds),
                "transport": edge.label,
                "reason": edge.reason,
            }
            for edge in merge_replicas(plan.edges)
        ],
        "gpus": {
            gpu_label(gpu.node, gpu.gpu_id) if gpu.node else gpu.gpu_id: {
                "stages": list(gpu.stage_names),
                "total_gpu_memory_fraction": round(gpu.total_gpu_memory_fraction, 6),
                "missing_fraction": list(gpu.missing_fraction_stage_names),
            }
            for gpu in plan.placement.gpus.values()
        },
        **({"gpu_memory": memory.as_values()} if memory is not None else {}),
        "stages": {
            stage.name: {
                "factory": stage_factory_path(stage)[0],
                "factory_args": to_jsonable_python(
                    resolve_stage_factory_args(stage, config, gpu_id=_device_index(stage, plan))
                ),
                "gpus": resolve_stage_gpu_ids(plan.placement, stage),
            }
            for stage in config.stages
        },
    }


def describe_config(config: PipelineConfig) -> str:
    """The pipeline at a glance: its stages with what carries their edges, and its processes.

    Raises:
        ValueError: The stages do not fit their GPUs, processes or relays.
    """
    plan = plan_pipeline(config)
    lines = [
        f"{config.name} ({config.config_cls})",
        f"model {config.model_path or '-'}, relay {config.relay_backend}",
    ]
    lines.append("stages")
    width = max(len(stage.name) for stage in config.stages)
    lines += [f"  {stage.name:<{width}}  {'; '.join(_edges(stage, plan))}" for stage in config.stages]
    lines.append("processes")
    for name, stages, gpu in _processes(plan):
        node = plan.processes.node_of[name]
        where = ("cpu" if gpu is None else f"gpu {gpu}") + (f", node {node}" if node is not None else "")
        lines.append(f"  {name} ({where}): {', '.join(stages)}")
    return "\n".join(lines)


def _device_index(stage: StageConfig, plan: PipelinePlan) -> int | None:
    """The stage's first GPU as its process counts, which sees one alone unless the config needs all."""
    first = instances_of(stage)[0]
    if not first.gpu_ids:
        return None
    process = plan.processes.stage_to_process.get(first.name)
    return first.gpu_ids[0] if process in plan.processes.all_gpus else 0


def _edges(stage: StageConfig, plan: PipelinePlan) -> Iterator[str]:
    def over(target: str) -> str:
        labels = dict.fromkeys(
            edge.label
            for edge in plan.edges
            if (stage_of(edge.source), stage_of(edge.target)) == (stage.name, target)
        )
        return f"{target} ({', '.join(labels)})"

    if stage.name == plan.config.resolved_entry_stage:
        yield "entry"
    if stage.wait_for:
        yield f"waits for {', '.join(stage.wait_for)}"
    elif stage.input_handler is not None and stage.input_handler.sources:
        yield f"waits for {', '.join(stage.input_handler.sources)}"
    if stage.terminal:
        yield "terminal"
    elif stage.get_next is not None:
        yield f"-> {stage.get_next}"
    else:
        chosen = " (some of)" if stage.route_fn is not None else ""
        yield f"->{chosen} {', '.join(map(over, stage.next_stages))}"
    if stage.stream_to:
        yield f"streams to {', '.join(map(over, stage.stream_to))}"
    if stage.is_replicated:
        least, most = stage.min_replicas, stage.max_replicas
        yield f"{most} replicas" if least == most else f"{least} to {most} replicas"


def _node_text(node: str | None) -> str | None:
    return "any" if node is not None and is_placeholder(node) else node


def _processes(plan: PipelinePlan) -> Iterator[tuple[str, list[str], int | None]]:
    for group in plan.processes.groups:
        yield group.name, list(group.stage_names), group.gpu_id
    for instance in stage_instances(plan.config):
        for rank, name in enumerate(plan.processes.tp_stage_to_processes.get(instance.name, ())):
            yield name, [instance.name], instance.gpu_ids[rank] if instance.gpu_ids else None


def _path_problems(config: PipelineConfig) -> Iterator[str]:
    for stage in config.stages:
        for field, path in _dotted_paths(stage):
            yield from _inspect(f"stage {stage.name!r}: {field}", path)[0]
        yield from _factory_problems(stage, config)
    for field in ("terminal_stages_fn", "placement_policy", "relay_backend", "network_relay_backend"):
        path = getattr(config, field)
        if path is not None and (is_class_path(path) or not field.endswith("relay_backend")):
            yield from _inspect(field, path)[0]


def _factory_problems(stage: StageConfig, config: PipelineConfig) -> Iterator[str]:
    path, field = stage_factory_path(stage)
    problems, signature = _inspect(f"stage {stage.name!r}: {field}", path)
    if problems:
        yield from problems
        return
    try:
        args = merge_factory_args(stage, config)
    except ValueError as exc:
        yield str(exc)
        return
    try:
        refuse_unread_gpu(stage, signature.accepts, args)
    except ValueError as exc:
        yield str(exc)
    for name in args:
        if not signature.accepts(name):
            yield unknown_argument(stage, name, signature.names or ())
    missing = sorted(signature.required - args.keys() - injected_args(stage, config).keys())
    if missing:
        yield f"stage {stage.name!r}: {field} {path} needs {missing}, which factory_args does not set"


def _dotted_paths(stage: StageConfig) -> Iterator[tuple[str, str]]:
    for field in ("route_fn", "wait_for_fn", "merge_fn", "stream_done_to_fn", "get_next"):
        path = getattr(stage, field)
        if path is not None:
            yield field, path
    if stage.input_handler is not None and stage.input_handler.merge_fn is not None:
        yield "input_handler.merge_fn", stage.input_handler.merge_fn
    for target, path in stage.project_payload.items():
        yield f"project_payload[{target!r}]", path
    for target, backend in stage.edge_relays.items():
        if is_class_path(backend):
            yield f"edge_relays[{target!r}]", backend


def _inspect(where: str, path: str) -> tuple[list[str], Signature]:
    """The problem with a dotted path, if any, and the arguments of what it names."""
    try:
        return [], inspect_path(path)
    except (ImportError, ValueError) as exc:
        return [f"{where}: {exc}"], Signature()
