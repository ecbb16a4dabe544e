"""True if a pipeline's stages fit their GPUs, counted in bytes before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.instances import StageInstance, instances_of
from sglang_omni.config.plan.memory_plan import (
    GIB,
    MIB,
    NO_POOL,
    GpuMemory,
    MemoryOfGpu,
    MemoryPlan,
    Setting,
    StageMemory,
    gib,
)
from sglang_omni.config.schema import PipelineConfig, StageConfig

# What a process takes of a GPU beside its tensors: its CUDA context, and the kernels of torch and cuBLAS, of
# attention, and those that SGLang and Triton compile.
CONTEXT_BYTES = 640 * MIB
# The server of CUDA's Multi-Process Service, which runs where processes share a GPU.
_MPS_BYTES = 64 * MIB
# KV pools hold whole pages of at most so many tokens.
_POOL_STEP = 64


@dataclass(frozen=True)
class MemoryDemand:
    """What one rank of a stage wants of its GPU, in bytes unless it says tokens.

    Attributes:
        weights: The loaded weights.
        workspace: Activations, captured graphs and libraries' buffers that no setting changes.
        loading: The most that the weights take while they are loaded.
        token_bytes: KV, and all else that is kept for each token of the KV pool; 0 for a stage without one.
        settings: To choose from, the best first; empty without a KV pool.
        least_tokens, most_tokens: The pool below which nothing useful runs, and the one beyond which more is
            of no use.
        weight: How much of the room left it gets, relative to other stages with a pool.
        cache: Of the workspace, keys and values of as many requests as run, whose number no plan changes.
        static_fraction: If set, weights and pool get this fraction of the GPU, as SGLang counts.
    """

    weights: int
    workspace: int
    loading: int = 0
    token_bytes: int = 0
    settings: tuple[Setting, ...] = ()
    least_tokens: int = 0
    most_tokens: int = 0
    weight: int = 1
    cache: int = 0
    static_fraction: float | None = None

    def with_pool(self, tokens: int) -> MemoryDemand:
        """The demand with a KV pool of exactly so many tokens: without settings for more requests than suit
        it."""
        fewest = self.settings[-1].requests
        fitting = (s for s in self.settings if s.requests == fewest or s.wanted_tokens <= tokens)
        settings = tuple(setting._replace(wanted_tokens=tokens) for setting in fitting)
        return replace(self, settings=settings, least_tokens=tokens, most_tokens=tokens)


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


def reserve_of(total_bytes: int, *, has_engine: bool) -> int:
    """What is left alone of a GPU's memory: for its driver, and for what no count here foresees.

    Args:
        has_engine: True if a stage with a KV pool is on it: where steps have all sizes, torch's allocator
            leaves more unused.
    """
    return max(GIB, total_bytes // 50) if has_engine else max(512 * MIB, total_bytes // 100)


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
        changes.append(f"take a GPU with {gib(max(needed) * 102 // 100)} or more")
    return replace(plan, changes=tuple(changes))


def fit_memory(config: PipelineConfig, gpus: Sequence[MemoryOfGpu]) -> MemoryPlan | None:
    """Gives each stage on this host's GPUs its share, and the step and pool that it leaves open.

    It sets ``total_gpu_memory_fraction``, and of stages with a KV pool the factory arguments
    ``max_total_tokens``, ``max_running_requests``, ``chunked_prefill_size`` and, if prompts are captured,
    ``prefill_cuda_graph``. What the config sets itself is kept.

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
            setting = memory.setting
            sizes = {
                "max_total_tokens": memory.tokens,
                "max_running_requests": setting.requests,
                "chunked_prefill_size": setting.step,
                "prefill_cuda_graph": setting.prompt_graphs,
            }
            open_ = {
                name: size for name, size in sizes.items() if size is not None and given.get(name) is None
            }
            stage.factory_args = {**stage.factory_args, **open_}
    return plan


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
    return demand.with_pool(tokens)


def _gpu_memory(group: _Group) -> GpuMemory:
    total = group.gpu.total_bytes
    reserve = reserve_of(total, has_engine=any(demand.settings for demand in group.demands.values()))
    if len(group.processes) > 1:
        reserve += _MPS_BYTES
    chosen: dict[str, StageMemory] = {}
    for name, room in group.fixed.items():
        if name in group.demands:
            chosen[name] = _share({name: group.demands[name]}, room)[name]
    declared = sum(
        max(0, room - (chosen[name].total if name in chosen else 0)) for name, room in group.fixed.items()
    )
    taken = declared + sum(memory.total for memory in chosen.values())
    open_ = {name: demand for name, demand in group.demands.items() if name not in chosen}
    chosen |= _share(open_, total - group.gpu.used_bytes - reserve - taken)
    return GpuMemory(group.gpu, reserve, tuple(chosen[name] for name in group.demands), declared)


def _share(demands: Mapping[str, MemoryDemand], room: int) -> dict[str, StageMemory]:
    """Settings and pools of stages that share ``room`` bytes: the best with which each has the pool it wants,
    else the last ones and what pools are possible."""
    if not demands:
        return {}
    settings: dict[str, Setting] = {}
    for choice in range(max(1, *(len(demand.settings) for demand in demands.values()))):
        settings = {
            name: demand.settings[min(choice, len(demand.settings) - 1)] if demand.settings else NO_POOL
            for name, demand in demands.items()
        }
        pools = {name: setting.wanted_tokens for name, setting in settings.items()}
        if _taken(demands, settings, pools) <= room:
            break
    else:
        pools = {name: demand.least_tokens for name, demand in demands.items()}
    _grow(pools, demands, settings, room)
    return {name: _memory(name, demand, settings[name], pools[name]) for name, demand in demands.items()}


def _memory(name: str, demand: MemoryDemand, setting: Setting, tokens: int) -> StageMemory:
    return StageMemory(
        stage=name,
        weights=demand.weights,
        kv=tokens * demand.token_bytes,
        workspace=demand.workspace + setting.workspace,
        loading=demand.loading,
        tokens=tokens,
        setting=setting,
    )


def _taken(
    demands: Mapping[str, MemoryDemand], settings: Mapping[str, Setting], pools: Mapping[str, int]
) -> int:
    return sum(_memory(name, d, settings[name], pools[name]).total for name, d in demands.items())


def _grow(
    pools: dict[str, int], demands: Mapping[str, MemoryDemand], settings: Mapping[str, Setting], room: int
) -> None:
    """Grows the pools into the room that is left, by the demands' weights."""
    while (left := room - _taken(demands, settings, pools)) > 0:
        growing = {name: d for name, d in demands.items() if d.token_bytes and pools[name] < d.most_tokens}
        if not growing:
            return
        parts = sum(demand.weight for demand in growing.values())
        before = dict(pools)
        for name, demand in growing.items():
            memory = _memory(name, demand, settings[name], pools[name])
            # While it is loaded, a stage may take more than afterwards: its pool grows into that first.
            unused = memory.total - memory.weights - memory.kv - memory.workspace
            more = _whole((left * demand.weight // parts + unused) // demand.token_bytes)
            pools[name] = min(pools[name] + more, demand.most_tokens)
        if pools == before:
            return


def _whole(tokens: int) -> int:
    return tokens // _POOL_STEP * _POOL_STEP


def _alike(plans: list[GpuMemory], names: Mapping[str, str]) -> Iterator[GpuMemory]:
    """The plans with stages' names, and all ranks and replicas of a stage with one setting and one pool:
    those of the GPU with the least room."""
    least: dict[str, tuple[int, Setting]] = {}
    for plan in plans:
        for memory in plan.stages:
            name = names[memory.stage]
            tokens, setting = least.get(name, (memory.tokens, memory.setting))
            least[name] = (min(tokens, memory.tokens), min(setting, memory.setting, key=_size))
    for plan in plans:
        stages = []
        for memory in plan.stages:
            name = names[memory.stage]
            tokens, setting = least[name]
            kv = memory.kv // memory.tokens * tokens if memory.tokens else 0
            stages.append(replace(memory, stage=name, tokens=tokens, setting=setting, kv=kv))
        yield replace(plan, stages=tuple(stages))


def _size(setting: Setting) -> tuple[int, int, bool]:
    return setting.requests, setting.step, bool(setting.prompt_graphs)


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
