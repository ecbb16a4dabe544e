"""What each stage gets of a GPU, and the table that says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

MIB, GIB = 1 << 20, 1 << 30
# The longest step of prompts that is captured as a CUDA graph. Longer ones compute for longer than their
# kernels take to launch, and their graphs would take several times the memory.
PROMPT_GRAPH_TOKENS = 2048


class MemoryOfGpu(Protocol):
    """What is asked of a GPU; ``sglang_omni.gpus.Gpu`` is one."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...


class Setting(NamedTuple):
    """A way to run a stage with a KV pool.

    Attributes:
        requests: How many are computed at once.
        step: The most tokens of a step.
        workspace: Bytes that it takes beside the stage's own: activations and graphs.
        wanted_tokens: The pool with which it is better than those after it.
        prompt_graphs: True if prompts are captured as CUDA graphs; None for a stage that never does.
    """

    requests: int
    step: int
    workspace: int
    wanted_tokens: int
    prompt_graphs: bool | None = None


# Of a stage without a KV pool.
NO_POOL = Setting(0, 0, 0, 0)


@dataclass(frozen=True)
class StageMemory:
    """What one rank of a stage gets of a GPU, in bytes unless it says tokens."""

    stage: str
    weights: int
    kv: int
    workspace: int
    loading: int = 0
    tokens: int = 0
    setting: Setting = NO_POOL

    @property
    def total(self) -> int:
        return max(self.weights + self.kv + self.workspace, self.loading)


@dataclass(frozen=True)
class GpuMemory:
    """A GPU's memory and the stages on it; ``free`` is negative if they do not fit.

    Attributes:
        reserve: What is left alone, with MPS if processes share the GPU.
        declared: What stages have beyond what they need, by their ``total_gpu_memory_fraction``.
    """

    gpu: MemoryOfGpu
    reserve: int
    stages: tuple[StageMemory, ...]
    declared: int = 0

    @property
    def free(self) -> int:
        left = self.gpu.total_bytes - self.gpu.used_bytes - self.reserve - self.declared
        return left - sum(s.total for s in self.stages)


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
            f"{f'other programs {gib(used.gpu.used_bytes)}, ' if used.gpu.used_bytes else ''}"
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
                note = f"   {_note(s)}" if s.tokens else ""
                yield (
                    f"  {s.stage:<14} {gib(s.weights):>10} {kv:>10} {gib(s.workspace):>10} "
                    f"{gib(s.total):>10}{note}"
                )
            if used.declared:
                yield f"  {'other stages':<14} {gib(used.declared):>43}"
            if used.gpu.used_bytes:
                yield f"  {'other programs':<14} {gib(used.gpu.used_bytes):>43}"
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
                    **({"other_programs_bytes": used.gpu.used_bytes} if used.gpu.used_bytes else {}),
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


def _note(memory: StageMemory) -> str:
    requests, step, *_ = memory.setting
    eager = ", prompts without CUDA graphs" if memory.setting.prompt_graphs is False else ""
    return f"{memory.tokens:,} tokens of KV, {requests} requests at once, {step:,} a step{eager}"
