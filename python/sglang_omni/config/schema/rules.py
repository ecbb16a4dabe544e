"""A stage's rules beyond the types of its fields.

Every error names the stage and the field. Rules about placement (GPU ids, memory budgets, processes) are
checked when the plans are made.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_omni.config.nearest import did_you_mean
from sglang_omni.config.schema.relay_backends import refuse_unknown_backend
from sglang_omni.config.schema.stage import StageConfig

#: Typed runtime values that ``runtime_arg_map`` may hand to a factory.
RUNTIME_VALUES = ("max_seq_len", "video_fps", "total_gpu_memory_fraction", "mem_fraction_static")


def check_stage(stage: StageConfig, names: list[str]) -> None:
    """Checks every rule of a stage, in a pipeline of stages with these names.

    Raises:
        ValueError: The first broken rule, with the stage and the field.
    """
    _check_form(stage)
    _check_routing(stage)
    _check_inputs(stage)
    _check_parallelism(stage)
    _check_references(stage, names)
    _check_projections(stage)
    _check_edge_relays(stage)
    _check_runtime(stage)


def _check_form(stage: StageConfig) -> None:
    if stage.executor is None:
        for field in ("get_next", "input_handler"):
            if getattr(stage, field) is not None:
                raise ValueError(
                    f"stage {stage.name!r}: {field} belongs to the legacy form and needs executor"
                )
        if not stage.factory:
            raise ValueError(f"stage {stage.name!r}: factory is missing")
        return
    if stage.factory is not None or stage.factory_args:
        raise ValueError(f"stage {stage.name!r}: set either executor or factory, not both")
    if stage.get_next is None and stage.next is None and not stage.terminal:
        raise ValueError(f"stage {stage.name!r}: a stage with executor needs get_next (or next, or terminal)")
    if stage.get_next is not None and (stage.next is not None or stage.route_fn is not None):
        raise ValueError(f"stage {stage.name!r}: get_next decides the route; it excludes next and route_fn")


def _check_routing(stage: StageConfig) -> None:
    if stage.get_next is None and (stage.next is not None) == stage.terminal:
        raise ValueError(f"stage {stage.name!r} must set exactly one of 'next' or 'terminal'")
    if stage.next is not None and not stage.next_stages:
        raise ValueError(f"stage {stage.name!r}: next is empty; name a stage, or set terminal")
    if stage.terminal and stage.route_fn is not None:
        raise ValueError(f"stage {stage.name!r} cannot set route_fn on a terminal stage")
    if stage.stream_done_to_fn is not None and not stage.stream_to:
        raise ValueError(f"stage {stage.name!r} cannot set stream_done_to_fn without stream_to")


def _check_inputs(stage: StageConfig) -> None:
    if stage.wait_for:
        if not stage.merge_fn:
            raise ValueError(f"stage {stage.name!r} has wait_for but no merge_fn")
        if stage.input_handler is not None:
            raise ValueError(f"stage {stage.name!r}: set either wait_for or input_handler, not both")
    else:
        for field in ("wait_for_fn", "merge_fn"):
            if getattr(stage, field) is not None:
                raise ValueError(f"stage {stage.name!r} has {field} but no wait_for")


def _check_parallelism(stage: StageConfig) -> None:
    if stage.parallelism.tp != stage.tp_size:
        raise ValueError(
            f"stage {stage.name!r}: tp_size={stage.tp_size} conflicts with "
            f"parallelism.tp={stage.parallelism.tp}"
        )
    check_gpu_count(stage)
    replicas = stage.max_replicas
    if isinstance(stage.node, list) and len(stage.node) != replicas:
        there_are = f"there may be {replicas} replicas" if replicas > 1 else "the stage is not replicated"
        raise ValueError(f"stage {stage.name!r}: node has {len(stage.node)} entries, but {there_are}")
    nodes = stage.node if isinstance(stage.node, list) else [stage.node]
    if any(node is not None and not node.strip() for node in nodes):
        raise ValueError(
            f"stage {stage.name!r}: node must not be an empty name; null is the coordinator's host"
        )
    if stage.autoscaling is not None and stage.num_replicas != 1:
        raise ValueError(
            f"stage {stage.name!r}: num_replicas={stage.num_replicas} conflicts with autoscaling, which "
            "starts with its min_replicas; set one of them"
        )
    if any(gpu < 0 for gpu in stage.gpu_ids):
        raise ValueError(f"stage {stage.name!r}: gpu ids must not be negative, got gpu={stage.gpu}")
    if stage.tp_size > 1 and stage.num_workers > 1:
        raise ValueError(
            f"stage {stage.name!r}: num_workers={stage.num_workers} cannot go with tp_size={stage.tp_size}"
        )


def check_gpu_count(stage: StageConfig) -> None:
    """Raise ValueError if ``gpu`` is a list of the wrong length."""
    replicas = stage.max_replicas
    if isinstance(stage.gpu, list) and len(stage.gpu) not in (stage.tp_size, stage.tp_size * replicas):
        each = f" and {replicas} replicas; give one id for each rank, of one replica or of all of them"
        raise ValueError(
            f"stage {stage.name!r}: gpu has {len(stage.gpu)} entries but tp_size={stage.tp_size}"
            f"{each if replicas > 1 else '; give one id for each rank'}"
        )


def _check_references(stage: StageConfig, names: list[str]) -> None:
    where = f"stage {stage.name!r}: "
    listed = {"next": stage.next_stages, "wait_for": stage.wait_for or [], "stream_to": stage.stream_to}
    sources = (stage.input_handler.sources if stage.input_handler is not None else None) or []
    keyed = {"project_payload": stage.project_payload, "edge_relays": stage.edge_relays}
    for field, used in {**listed, **keyed, "input_handler.sources": sources}.items():
        refuse_unknown_stages(f"{where}{field}", used, names)
    for field, values in listed.items():
        repeated = sorted({value for value in values if values.count(value) > 1})
        if repeated:
            raise ValueError(f"{where}{field} names {repeated} more than once")


def _check_projections(stage: StageConfig) -> None:
    if stage.get_next is not None:
        return  # get_next decides at run time where the stage routes
    for target in stage.project_payload:
        if target not in stage.next_stages:
            raise ValueError(
                f"stage {stage.name!r}: project_payload names {target!r}, to which the stage sends no payload"
                f"{did_you_mean(target, stage.next_stages)}"
            )


def _check_edge_relays(stage: StageConfig) -> None:
    targets = {*stage.next_stages, *stage.stream_to}
    for target, backend in stage.edge_relays.items():
        if target not in targets and stage.get_next is None:
            raise ValueError(
                f"stage {stage.name!r}: edge_relays names {target!r}, to which the stage sends nothing"
                f"{did_you_mean(target, targets)}"
            )
        refuse_unknown_backend(f"stage {stage.name!r}: edge_relays[{target!r}]", backend)


def _check_runtime(stage: StageConfig) -> None:
    for value in stage.runtime_arg_map:
        if value not in RUNTIME_VALUES:
            raise ValueError(
                f"stage {stage.name!r}: runtime_arg_map has no runtime value {value!r}"
                f"{did_you_mean(value, RUNTIME_VALUES)}"
            )


def refuse_unknown_stages(where: str, used: Iterable[str], names: list[str]) -> None:
    """Raise ValueError, with ``where`` first, if ``used`` holds a name that is not in ``names``."""
    unknown = sorted(set(used) - set(names))
    if unknown:
        raise ValueError(f"{where} has unknown stages: {unknown}{did_you_mean(unknown[0], names)}")
