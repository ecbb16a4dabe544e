"""Whether a pipeline's stages fit their GPUs, counted in bytes before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from sglang_omni.config.factory_args import merge_factory_args
from sglang_omni.config.instances import StageInstance, instances_of
from sglang_omni.config.schema import PipelineConfig, StageConfig

MIB, GIB = 1 << 20, 1 << 30
# What a process takes of a GPU before it loads anything: its CUDA context and the kernels of torch.
CONTEXT_BYTES = 512 * MIB
# KV pools hold whole pages of at most so many tokens.
_POOL_STEP = 64


class MemoryOfGpu(Protocol):
    """What is asked of a GPU; ``sglang_omni.gpus.Gpu`` is one."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...


@dataclass(frozen=True)
class MemoryDemand:
    """What one rank of a stage wants of its GPU, in bytes unless it says tokens.

    Attributes:
        weights: The loaded weights.
        workspace: Activations, captured graphs and libraries' buffers that no setting changes.
        loading: The most that the weights take while they are loaded.
        token_bytes: KV, and all else that is kept for each token of the KV pool; 0 for a stage without one.
        step_bytes: Activations of each token of a step.
        steps: Sizes of a step in tokens to choose from, the best first; empty without a KV pool.
        least_tokens, wanted_tokens, most_tokens: The pool below which nothing useful runs, the one for which
            a smaller step is chosen, and the one beyond which more is of no use.
        weight: How much of the room left it gets, relative to other stages with a pool.
        cache: Of the workspace, keys and values of as many requests as run, whose number no plan changes.
        static_fraction: If set, weights and pool get this fraction of the GPU, as SGLang counts.
    """

    weights: int
    workspace: int
    loading: int = 0
    token_bytes: int = 0
    step_bytes: int = 0
    steps: tuple[int, ...] = ()
    least_tokens: int = 0
    wanted_tokens: int = 0
    most_tokens: int = 0
    weight: int = 1
    cache: int = 0
    static_fraction: float | None = None


@runtime_checkable
class CountsMemory(Protocol):
    """A ``PipelineConfig`` that knows its stages' demands."""

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """The demand of one rank of a stage whose factory gets ``args``; None if it is not known.

        Of a stage on the CPU, ``args`` have the ``dtype`` that it computes in, and ``device``, ``"cpu"``.
        """
        ...

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it."""
        ...


@dataclass(frozen=True)
class StageMemory:
    """What one rank of a stage gets of a GPU, in bytes unless it says tokens."""

    stage: str
    weights: int
    kv: int
    workspace: int
    loading: int = 0
    tokens: int = 0
    step: int = 0

    @property
    def total(self) -> int:
        return max(self.weights + self.kv + self.workspace, self.loading)


@dataclass(frozen=True)
class GpuMemory:
    """A GPU's memory and the stages on it; ``free`` is negative if they do not fit."""

    gpu: MemoryOfGpu
    reserve: int
    stages: tuple[StageMemory, ...]
    declared: int = 0

    @property
    def free(self) -> int:
        return self.gpu.total_bytes - self.reserve - self.declared - sum(s.total for s in self.stages)


@dataclass(frozen=True)
class MemoryPlan:
    """
    Attributes:
        gpus: The GPUs of this host that the pipeline uses.
        missing: Ids of GPUs that the config names and this host does not have.
        changes: If it does not fit: what to change so that it does.
    """

    gpus: tuple[GpuMemory, ...]
    missing: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.missing and all(gpu.free >= 0 for gpu in self.gpus)

    def summary(self) -> str:
        """The plan in a line."""
        return "; ".join(
            f"GPU {used.gpu.index}, {used.gpu.name}: weights {gib(sum(s.weights for s in used.stages))}, "
            f"KV cache {gib(sum(s.kv for s in used.stages))} "
            f"({', '.join(f'{s.stage} {s.tokens:,} tokens' for s in used.stages if s.tokens)}), "
            f"{gib(used.free)} free of {gib(used.gpu.total_bytes)}"
            for used in self.gpus
        )

    def lines(self) -> Iterator[str]:
        """The plan as a table, a line at a time."""
        for used in self.gpus:
            yield f"GPU {used.gpu.index}, {used.gpu.name}: {gib(used.gpu.total_bytes)}"
            yield f"  {'stage':<14} {'weights':>10} {'KV cache':>10} {'workspace':>10} {'together':>10}"
            for s in used.stages:
                kv = gib(s.kv) if s.kv else "-"
                note = f"   {s.tokens:,} tokens of KV, {s.step:,} a step" if s.tokens else ""
                yield (
                    f"  {s.stage:<14} {gib(s.weights):>10} {kv:>10} {gib(s.workspace):>10} "
                    f"{gib(s.total):>10}{note}"
                )
            if used.declared:
                yield f"  {'other stages':<14} {gib(used.declared):>43}"
            yield f"  {'reserve':<14} {gib(used.reserve):>43}"
            word, left = ("free", used.free) if used.free >= 0 else ("MISSING", -used.free)
            yield f"  {word:<14} {gib(left):>43}"
        for index in self.missing:
            yield f"GPU {index}: there is none"

    def as_values(self) -> dict[str, Any]:
        """The plan as plain values, in bytes."""
        return {
            "fits": self.fits,
            **({"changes": list(self.changes)} if self.changes else {}),
            "gpus": {
                used.gpu.index: {
                    "name": used.gpu.name,
                    "total_bytes": used.gpu.total_bytes,
                    "reserve_bytes": used.reserve,
                    "free_bytes": used.free,
                    "stages": {
                        s.stage: {
                            "weights_bytes": s.weights,
                            "kv_bytes": s.kv,
                            "workspace_bytes": s.workspace,
                            **({"max_total_tokens": s.tokens} if s.tokens else {}),
                        }
                        for s in used.stages
                    },
                }
                for used in self.gpus
            },
        }


def gib(num_bytes: int) -> str:
    """Bytes as text: ``"56.9 GiB"``."""
    return f"{num_bytes / GIB:.1f} GiB"


def reserve_of(total_bytes: int) -> int:
    """What is left alone of a GPU's memory: for its driver, and for what no count here foresees."""
    return max(512 * MIB, total_bytes // 100)


def choose(demand: MemoryDemand, room: int, total_bytes: int) -> StageMemory:
    """The step and the pool of a stage that is alone in ``room`` bytes of a GPU with ``total_bytes``.

    The stage has no name; its total may be more than ``room``, if it does not fit.
    """
    return _share({"": _with_fraction(demand, total_bytes)}, room)[""]


def plan_memory(config: PipelineConfig, gpus: Sequence[MemoryOfGpu]) -> MemoryPlan | None:
    """What the stages on this host's GPUs take of them.

    Stages with a ``total_gpu_memory_fraction`` have that much, whether they need it or not; the others share
    what is left. Stages on other hosts are not looked at.

    Args:
        config: The pipeline.
        gpus: The GPUs of this host by their indices.

    Returns:
        The plan; None if no stage is on a GPU, or nothing is known of the stages' demands.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
    """
    plan = _plan(config, gpus)
    if plan is None or plan.fits:
        return plan
    assert isinstance(config, CountsMemory)
    changes = list(_smaller_settings(plan))
    for text, variant in config.smaller_variants():
        # What suffices by itself is not offered once more together with something else.
        if not any(change in text for change in changes) and _fits(_plan(variant, gpus)):
            changes.append(text)
    if plan.missing:
        there_are = f"{len(gpus)}, counted from 0" if gpus else "none"
        changes.append(f"place the stages on the GPUs of this machine, of which CUDA shows {there_are}")
    used = {gpu.gpu.index for gpu in plan.gpus}
    if others := [gpu.index for gpu in gpus if gpu.index not in used]:
        changes.append(
            f"place stages on GPU {', '.join(map(str, others))}, as in --stage talker.gpu={others[0]}"
        )
    needed = [used.gpu.total_bytes - used.free for used in plan.gpus if used.free < 0]
    if needed:
        # A larger GPU has a larger reserve.
        changes.append(f"take a GPU with {gib(max(needed) * 101 // 100)} or more")
    return replace(plan, changes=tuple(changes))


def fit_memory(config: PipelineConfig, gpus: Sequence[MemoryOfGpu]) -> MemoryPlan | None:
    """Gives each stage on this host's GPUs its share, and the step and pool that it leaves open.

    It sets ``total_gpu_memory_fraction``, and the factory arguments ``max_total_tokens`` and
    ``chunked_prefill_size`` of stages with a KV pool. What the config sets itself is kept.

    Returns:
        As ``plan_memory``. Of a plan that does not fit, nothing is applied.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
    """
    plan = plan_memory(config, gpus)
    if plan is None or not plan.fits:
        return plan
    for stage in config.stages:
        given = merge_factory_args(stage, config)
        shares = [
            (memory, used.gpu.total_bytes)
            for used in plan.gpus
            for memory in used.stages
            if memory.stage == stage.name
        ]
        if not shares:
            continue
        resources = stage.runtime.resources
        if resources.total_gpu_memory_fraction is None:
            # Rounded up to four digits; the reserve is larger than all that this adds.
            share = max(math.ceil(10_000 * memory.total / total) / 10_000 for memory, total in shares)
            resources.total_gpu_memory_fraction = min(share, 1.0)
        memory = shares[0][0]
        if memory.tokens:
            sizes = {"max_total_tokens": memory.tokens, "chunked_prefill_size": memory.step}
            open_ = {name: size for name, size in sizes.items() if given.get(name) is None}
            stage.factory_args = {**stage.factory_args, **open_}
    return plan


def refusal(plan: MemoryPlan) -> str:
    """Why a plan that does not fit is refused: a line with what to change, and the table."""
    lacks = [
        f"GPU {used.gpu.index} lacks {gib(-used.free)} of {gib(used.gpu.total_bytes)}"
        for used in plan.gpus
        if used.free < 0
    ]
    lacks += [f"there is no GPU {index}" for index in plan.missing]
    head = f"the models do not fit the GPU memory ({', '.join(lacks)}): {'; or '.join(plan.changes)}"
    return "\n".join([head, *plan.lines()])


@dataclass
class _Group:
    """The stages on one GPU."""

    gpu: MemoryOfGpu
    demands: dict[str, MemoryDemand] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    processes: set[str] = field(default_factory=set)


def _fits(plan: MemoryPlan | None) -> bool:
    return plan is not None and plan.fits


def _plan(config: PipelineConfig, gpus: Sequence[MemoryOfGpu]) -> MemoryPlan | None:
    if not isinstance(config, CountsMemory):
        return None
    by_index = {gpu.index: gpu for gpu in gpus}
    groups: dict[int, _Group] = {}
    missing: set[int] = set()
    names: dict[str, str] = {}
    for stage, instance in _placed_here(config):
        demand = config.memory_demand(stage, merge_factory_args(stage, config))
        fraction = stage.runtime.resources.total_gpu_memory_fraction
        for index in instance.gpu_ids:
            if index not in by_index:
                missing.add(index)
                continue
            group = groups.setdefault(index, _Group(by_index[index]))
            total = group.gpu.total_bytes
            names[instance.name] = stage.name
            if fraction is not None:
                group.fixed[instance.name] = int(fraction * total)
            if demand is None:
                continue
            context = 0 if (process := _process(stage, instance)) in group.processes else CONTEXT_BYTES
            group.processes.add(process)
            group.demands[instance.name] = _with_fraction(
                replace(
                    demand,
                    workspace=demand.workspace + context,
                    loading=demand.loading + context if demand.loading else 0,
                ),
                total,
            )
    if not any(group.demands for group in groups.values()) and not missing:
        return None
    return MemoryPlan(
        tuple(_alike([_gpu_memory(group) for _, group in sorted(groups.items())], names)),
        tuple(sorted(missing)),
    )


def _placed_here(config: PipelineConfig) -> Iterator[tuple[StageConfig, StageInstance]]:
    for stage in config.stages:
        for instance in instances_of(stage):
            if instance.gpu_ids and instance.node is None:
                yield stage, instance


def _process(stage: StageConfig, instance: StageInstance) -> str:
    return f"{stage.process or stage.name} {instance.replica}"


def _with_fraction(demand: MemoryDemand, total_bytes: int) -> MemoryDemand:
    """``demand`` with the pool that its ``static_fraction`` leaves, if it has one."""
    if demand.static_fraction is None or demand.least_tokens == demand.most_tokens:
        return demand
    room = int(demand.static_fraction * total_bytes) - demand.weights
    tokens = min(max(demand.least_tokens, _whole(room // demand.token_bytes)), demand.most_tokens)
    return replace(demand, least_tokens=tokens, wanted_tokens=tokens, most_tokens=tokens)


def _gpu_memory(group: _Group) -> GpuMemory:
    total, reserve = group.gpu.total_bytes, reserve_of(group.gpu.total_bytes)
    chosen: dict[str, StageMemory] = {}
    for name, room in group.fixed.items():
        if name in group.demands:
            chosen[name] = _share({name: group.demands[name]}, room)[name]
    declared = sum(
        max(0, room - (chosen[name].total if name in chosen else 0)) for name, room in group.fixed.items()
    )
    taken = declared + sum(memory.total for memory in chosen.values())
    open_ = {name: demand for name, demand in group.demands.items() if name not in chosen}
    chosen |= _share(open_, total - reserve - taken)
    return GpuMemory(group.gpu, reserve, tuple(chosen[name] for name in group.demands), declared)


def _share(demands: Mapping[str, MemoryDemand], room: int) -> dict[str, StageMemory]:
    """Steps and pools of stages that share ``room`` bytes: the largest step with which each has the pool it
    wants, else the smallest step and what pools are possible."""
    if not demands:
        return {}
    num_choices = max(1, *(len(demand.steps) for demand in demands.values()))
    steps: dict[str, int] = {}
    for choice in range(num_choices):
        steps = {
            name: demand.steps[min(choice, len(demand.steps) - 1)] if demand.steps else 0
            for name, demand in demands.items()
        }
        pools = {name: demand.wanted_tokens for name, demand in demands.items()}
        if _taken(demands, steps, pools) <= room:
            break
    else:
        pools = {name: demand.least_tokens for name, demand in demands.items()}
    _grow(pools, demands, steps, room)
    return {name: _memory(name, demand, steps[name], pools[name]) for name, demand in demands.items()}


def _memory(name: str, demand: MemoryDemand, step: int, tokens: int) -> StageMemory:
    return StageMemory(
        stage=name,
        weights=demand.weights,
        kv=tokens * demand.token_bytes,
        workspace=demand.workspace + step * demand.step_bytes,
        loading=demand.loading,
        tokens=tokens,
        step=step,
    )


def _taken(demands: Mapping[str, MemoryDemand], steps: Mapping[str, int], pools: Mapping[str, int]) -> int:
    return sum(_memory(name, d, steps[name], pools[name]).total for name, d in demands.items())


def _grow(
    pools: dict[str, int], demands: Mapping[str, MemoryDemand], steps: Mapping[str, int], room: int
) -> None:
    """Grows the pools into the room that is left, by the demands' weights."""
    while (left := room - _taken(demands, steps, pools)) > 0:
        growing = {name: d for name, d in demands.items() if d.token_bytes and pools[name] < d.most_tokens}
        if not growing:
            return
        parts = sum(demand.weight for demand in growing.values())
        before = dict(pools)
        for name, demand in growing.items():
            memory = _memory(name, demand, steps[name], pools[name])
            # While it is loaded, a stage may take more than afterwards: its pool grows into that first.
            unused = memory.total - memory.weights - memory.kv - memory.workspace
            more = _whole((left * demand.weight // parts + unused) // demand.token_bytes)
            pools[name] = min(pools[name] + more, demand.most_tokens)
        if pools == before:
            return


def _whole(tokens: int) -> int:
    return tokens // _POOL_STEP * _POOL_STEP


def _alike(plans: list[GpuMemory], names: Mapping[str, str]) -> Iterator[GpuMemory]:
    """The plans with stages' names, and all ranks and replicas of a stage with one step and one pool."""
    least: dict[str, tuple[int, int]] = {}
    for plan in plans:
        for memory in plan.stages:
            name = names[memory.stage]
            tokens, step = least.get(name, (memory.tokens, memory.step))
            least[name] = (min(tokens, memory.tokens), min(step, memory.step))
    for plan in plans:
        stages = []
        for memory in plan.stages:
            name = names[memory.stage]
            tokens, step = least[name]
            kv = memory.kv // memory.tokens * tokens if memory.tokens else 0
            stages.append(replace(memory, stage=name, tokens=tokens, step=step, kv=kv))
        yield replace(plan, stages=tuple(stages))


def _smaller_settings(plan: MemoryPlan) -> Iterator[str]:
    """Changes of settings that suffice: a smaller pool."""
    for used in plan.gpus:
        for memory in used.stages:
            if used.free >= 0 or not memory.tokens:
                continue
            token_bytes = memory.kv // memory.tokens
            tokens = _whole(memory.tokens - math.ceil(-used.free / token_bytes))
            if tokens >= 2048:
                yield f"--stage {memory.stage}.max_total_tokens={tokens} at most"
