"""The options of a decoder's engine: what the stage's config gives, and defaults by device for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.model_runner.headers import header_report
from sglang_omni.models.loading import available_cores, placement
from sglang_omni.models.memory import memory_on_gpu, share_bytes

if TYPE_CHECKING:
    from sglang_omni.config.memory import MemoryDemand
    from sglang_omni.engines.options import DtypeChoice, EngineOptions


class DecoderDefaults(NamedTuple):
    """What bounds a decoder's engine if its config does not; names as in ``EngineOptions``.

    Attributes:
        max_running_requests, max_total_tokens, chunked_prefill_size: On a CPU; on a GPU they are chosen by
            its memory.
    """

    max_running_requests: int
    max_total_tokens: int
    chunked_prefill_size: int


def decoder_options(
    defaults: DecoderDefaults,
    demand_of: Callable[[Mapping[str, Any]], MemoryDemand | None],
    *,
    dtype: DtypeChoice | None,
    gpu_id: int | None,
    num_threads: int | None,
    max_running_requests: int | None,
    max_total_tokens: int | None,
    chunked_prefill_size: int | None,
    total_gpu_memory_fraction: float | None,
    prefill_cuda_graph: bool | None = None,
    stored_dtype: str | None = None,
    tp: tuple[int, int, int | None] = (0, 1, None),
    **options: Any,
) -> EngineOptions:
    """
    Args:
        defaults: By the stage.
        demand_of: The stage's demand on a GPU, by its factory's arguments.
        dtype, stored_dtype: As for ``placement``.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; by default the ranks share half of the cores, which leaves the rest to other
            stages.
        max_running_requests, max_total_tokens, chunked_prefill_size, prefill_cuda_graph: As for
            ``EngineOptions``; None for the default.
        total_gpu_memory_fraction: The stage's share of the GPU; None if it is alone there.
        tp: This process's rank, the number of ranks, and the port at which they meet.
        options: Further fields of ``EngineOptions``.

    Raises:
        ValueError: There is no such GPU, the stage does not fit there, or an option is out of its range.
    """
    from sglang_omni.engines.options import EngineOptions, TensorParallel

    computed_in, device = placement(dtype, gpu_id, stored_dtype)
    given = {
        "max_running_requests": max_running_requests,
        "max_total_tokens": max_total_tokens,
        "chunked_prefill_size": chunked_prefill_size,
        "prefill_cuda_graph": prefill_cuda_graph,
    }
    sizes: dict[str, Any] = defaults._asdict()
    # Of headers nothing is put on a GPU, which may be none of this machine's.
    placed = gpu_id if header_report() is None else None
    if placed is not None:
        demand = demand_of({**options, **given, "dtype": dtype, "tp_size": tp[1]})
        assert demand is not None, "what a decoder takes of a GPU is counted"
        memory = memory_on_gpu(demand, placed, total_gpu_memory_fraction)
        sizes = {
            "max_running_requests": memory.setting.requests,
            "max_total_tokens": memory.tokens,
            "chunked_prefill_size": memory.setting.step,
            "prefill_cuda_graph": memory.setting.prompt_graphs is not False,
            "workspace_bytes": memory.workspace,
        }
    sizes |= {name: size for name, size in given.items() if size is not None}
    return EngineOptions(
        dtype=computed_in,
        device=device,
        num_threads=num_threads or max(1, available_cores() // 2 // tp[1]),
        memory_bytes=None if placed is None else share_bytes(placed, total_gpu_memory_fraction),
        tp=TensorParallel(*tp),
        **sizes,
        **options,
    )
