"""The memory of a machine that a pipeline's stages on the CPU take, compared before anything is loaded.

What is counted is the least that a server takes: weights, KV caches, and its processes. What requests take
comes on top. Weights that stay in the checkpoint's mapped file are not counted: the system may drop their
pages, and reads them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.factories.overrides import override_stages
from sglang_omni.config.plan.instances import instances_of
from sglang_omni.config.plan.memory import CountsMemory
from sglang_omni.config.plan.memory_plan import MIB, gib
from sglang_omni.config.plan.weights import tensor_sizes
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.published import STORED
from sglang_omni.ram import Ram

# Memory of its own that a process with torch has before it loads anything; measured 290 MiB.
_PROCESS_BYTES = 256 * MIB
# Weights that decoders stack or pack, and so copy, whatever their dtype.
_COPIED = re.compile(r"(^|\.)model\.layers\.\d+\.|lm_head\.weight$")


@dataclass(frozen=True)
class StageRam:
    """
    Attributes:
        weights: Bytes, in the dtype in force, of all ranks and replicas.
        kv: Bytes of their KV caches.
    """

    stage: str
    dtype: str
    weights: int
    kv: int


@dataclass(frozen=True)
class RamPlan:
    """
    Attributes:
        stages: Of one server replica.
        mapped: Bytes of weights that stay in the mapped file.
        processes: Of one server replica.
        replicas: Server replicas.
        ram: What there is.
        changes: If it does not fit: what to change so that it does.
    """

    name: str
    stages: tuple[StageRam, ...]
    mapped: int
    processes: int
    replicas: int
    ram: Ram
    changes: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """Bytes, at least."""
        own = sum(stage.weights + stage.kv for stage in self.stages) - self.mapped
        return self.replicas * (own + self.processes * _PROCESS_BYTES)

    @property
    def fits(self) -> bool:
        return self.needed <= self.ram.available

    def summary(self) -> str:
        """What is needed, and what there is."""
        weights, kv = (sum(getattr(s, name) for s in self.stages) for name in ("weights", "kv"))
        parts = [f"weights in {', '.join(sorted({s.dtype for s in self.stages}))} {gib(weights)}"]
        parts += [f"{gib(self.mapped)} of them in the mapped file"] if self.mapped else []
        parts += [f"KV cache {gib(kv)}"] if kv else []
        parts += [f"{self.processes} processes {gib(self.processes * _PROCESS_BYTES)}"]
        times = f", {self.replicas} replicas" if self.replicas > 1 else ""
        return (
            f"needs {gib(self.needed)} of memory ({', '.join(parts)}{times}); {self.ram.bound} has "
            f"{gib(self.ram.available)} available, of {gib(self.ram.total)}"
        )

    def refusal(self) -> str:
        """Why it is not started, and what to change."""
        return f"{self.name} {self.summary()}: {'; or '.join(self.changes)}"

    def as_values(self) -> dict[str, Any]:
        """The plan as plain values, in bytes."""
        return {
            "fits": self.fits,
            "needed_bytes": self.needed,
            "available_bytes": self.ram.available,
            "mapped_bytes": self.mapped,
            "replicas": self.replicas,
            "stages": {
                s.stage: {"dtype": s.dtype, "weights_bytes": s.weights, "kv_bytes": s.kv} for s in self.stages
            },
            **({"changes": list(self.changes)} if self.changes else {}),
        }


def plan_ram(config: PipelineConfig, ram: Ram, *, replicas: int = 1) -> RamPlan | None:
    """What the stages on this host's CPU take of its memory.

    Args:
        config: The pipeline.
        ram: What there is.
        replicas: Server replicas on this host, each with the whole pipeline.

    Returns:
        The plan; None if no stage is on this host's CPU, or nothing is known of the stages' demands.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
    """
    plan = _plan(config, ram, replicas)
    if plan is None or plan.fits:
        return plan
    return replace(plan, changes=tuple(_changes(config, plan)))


def _plan(config: PipelineConfig, ram: Ram, replicas: int) -> RamPlan | None:
    if not isinstance(config, CountsMemory):
        return None
    here = list(_on_cpu(config))
    stages = []
    for stage, ranks in here:
        args = merge_factory_args(stage, config)
        dtype = "float32" if args.get("dtype") in (None, "auto") else str(args["dtype"])
        demand = config.memory_demand(stage, {**args, "dtype": dtype, "device": "cpu"})
        if demand is not None:
            kv = demand.least_tokens * demand.token_bytes + demand.cache
            stages.append(StageRam(stage.name, dtype, ranks * demand.weights, ranks * kv))
    if not stages:
        return None
    processes = {stage.process or stage.name for stage, _ in here}
    return RamPlan(
        config.name or config.model_path,
        tuple(stages),
        _mapped(config, stages),
        len(processes),
        replicas,
        ram,
    )


def _on_cpu(config: PipelineConfig) -> Iterator[tuple[StageConfig, int]]:
    """The stages on this host's CPU, with the number of their ranks and replicas."""
    for stage in config.stages:
        here = [each for each in instances_of(stage) if not each.gpu_ids and each.node is None]
        if here:
            yield stage, len(here) * stage.tp_size


def _mapped(config: PipelineConfig, stages: list[StageRam]) -> int:
    """Bytes of weights that no stage converts or copies; at most those of the stages."""
    if not Path(config.model_path).is_dir():
        return 0
    kept = {STORED[stage.dtype] for stage in stages if stage.dtype in STORED}
    sizes = [
        size
        for size in tensor_sizes(config.model_path)
        if size.dtype in kept and not _COPIED.search(size.name)
    ]
    return min(sum(size.stored_bytes for size in sizes), sum(stage.weights for stage in stages))


def _changes(config: PipelineConfig, plan: RamPlan) -> Iterator[str]:
    if any(stage.dtype == "float32" for stage in plan.stages):
        smaller = config.model_copy(deep=True)
        override_stages(smaller, "dtype", "bfloat16")
        half = _plan(smaller, plan.ram, plan.replicas)
        assert half is not None
        if half.needed < plan.needed:
            enough = "" if half.fits else ", which is too much as well"
            yield f"--dtype bfloat16 needs {gib(half.needed)}{enough}"
    if isinstance(config, CountsMemory):
        for change, variant in config.smaller_variants():
            # All others are of GPUs.
            less = _plan(variant, plan.ram, plan.replicas) if change.startswith("--stage ") else None
            if less is not None and less.fits:
                yield f"{change}, which needs {gib(less.needed)}"
    if plan.replicas > 1:
        yield f"a smaller --dp-size: each replica needs {gib(plan.needed // plan.replicas)}"
    yield f"GPUs: `sgl-omni check {config.model_path} --gpus 1x80GB` counts whether it fits some"
    yield "a smaller model, or a machine with more memory"
