"""The options of a decoder's engine: what the stage's config gives, and defaults by device for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni.model_runner.headers import header_report
from sglang_omni.models.decoder.memory import memory_on_gpu, share_bytes
from sglang_omni.models.loading import available_cores, placement

if TYPE_CHECKING:
    from sglang_omni.config.plan.memory import MemoryDemand
    from sglang_omni.engines.options import EngineOptions
    from sglang_omni.models.decoder.args import DecoderArgs

_CHOSEN_BY_MEMORY = ("max_running_requests", "max_total_tokens", "chunked_prefill_size", "prefill_cuda_graph")


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
    args: DecoderArgs,
    *,
    stored_dtype: str | None = None,
    **more: Any,
) -> EngineOptions:
    """
    Args:
        defaults: By the stage.
        demand_of: The stage's demand on a GPU, by its factory's arguments.
        args: Those arguments.
        stored_dtype: As for ``placement``.
        more: Further fields of ``EngineOptions``, which the stage sets itself.

    Raises:
        ValueError: There is no such GPU, the stage does not fit there, or an option is out of its range.
    """
    from sglang_omni.engines.options import EngineOptions, TensorParallel

    options: dict[str, Any] = {**args, **more}
    dtype, gpu_id, num_threads = (options.pop(name, None) for name in ("dtype", "gpu_id", "num_threads"))
    fraction = options.pop("total_gpu_memory_fraction", None)
    tp = TensorParallel(options.pop("tp_rank", 0), options.pop("tp_size", 1), options.pop("nccl_port", None))
    computed_in, device = placement(dtype, gpu_id, stored_dtype)
    given = {name: options.pop(name, None) for name in _CHOSEN_BY_MEMORY}
    sizes: dict[str, Any] = defaults._asdict()
    # Of headers nothing is put on a GPU, which may be none of this machine's.
    placed = gpu_id if header_report() is None else None
    if placed is not None:
        demand = demand_of({**options, **given, "dtype": dtype, "tp_size": tp.size})
        assert demand is not None, "what a decoder takes of a GPU is counted"
        memory = memory_on_gpu(demand, placed, fraction)
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
        num_threads=num_threads or max(1, available_cores() // 2 // tp.size),
        memory_bytes=None if placed is None else share_bytes(placed, fraction),
        tp=tp,
        **sizes,
        **options,
    )
