"""SGLang's settings for an engine's options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory_plan import PROMPT_GRAPH_TOKENS
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.sglang.lora import lora_settings
from sglang_omni.gpus import CUSTOM_ALL_REDUCE

# SGLang wants a few free pages beyond those that a request fills; with them, a request that needs the whole
# pool runs.
_POOL_SLACK = 8


def usable_tokens(allocator: Any) -> int:
    """The most tokens of one request that SGLang admits to a KV pool.

    Args:
        allocator: SGLang's allocator of the pool, with the ``size`` that was really built.
    """
    return int(allocator.size) - _POOL_SLACK * int(allocator.page_size)


def pool_tokens(options: EngineOptions, page_size: int) -> int:
    """The size of a pool in which ``usable_tokens`` are at least ``max_total_tokens``.

    Args:
        options: The engine's.
        page_size: What SGLang made of the options': some attention kernels want larger pages.
    """
    return (-(-options.max_total_tokens // page_size) + _POOL_SLACK) * page_size


def _captured_tokens(options: EngineOptions) -> int:
    """The longest step of prompts that is captured."""
    step = options.chunked_prefill_size
    return min(PROMPT_GRAPH_TOKENS, options.max_total_tokens, step if step > 0 else PROMPT_GRAPH_TOKENS)


def device_index(options: EngineOptions) -> int:
    """The index of the GPU, or on a CPU, of the rank's share of the cores."""
    kind, _, index = options.device.partition(":")
    return options.tp.rank if kind == "cpu" else int(index or 0)


def _check_names(options: EngineOptions, kind: str) -> None:
    """Raise ValueError if a name is none of SGLang's, or has no effect on this kind of device."""
    from sglang.srt.server_args import ServerArgs

    given = {
        "--quantization": options.quantization,
        "--kv-cache-dtype": None if options.kv_cache_dtype == "auto" else options.kv_cache_dtype,
        "--attention-backend": options.attention_backend,
    }
    words = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    if not words:
        return
    if kind == "cpu":
        raise ValueError(f"{' '.join(words)}: for stages on a GPU; leave it out on a CPU")
    # Only its command line checks them: ServerArgs takes any text, and fails later, or never.
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    try:
        parser.parse_args(["--model-path", "none", *words])
    except argparse.ArgumentError as exc:
        raise ValueError(f"SGLang refuses it: {exc}") from None


def server_args(
    model_path: Path, options: EngineOptions, load_format: Any, *, steps_ahead: bool = True
) -> Any:
    """The ``ServerArgs`` of an engine.

    Args:
        model_path: A directory with a ``config.json`` for SGLang.
        load_format: SGLang's name of a loader, or a loader class.
        steps_ahead: As of ``DecoderSpec``.

    Raises:
        ValueError: Options that contradict each other, or that SGLang does not know.
    """
    from sglang.srt.server_args import ServerArgs

    kind = options.device.split(":")[0]
    _check_names(options, kind)
    page_size = options.page_size or 1
    if 0 < options.chunked_prefill_size < page_size:
        # SGLang cuts prompts at the ends of pages, and would find none to cut at.
        raise ValueError(
            f"chunked_prefill_size ({options.chunked_prefill_size}) must hold a page of page_size "
            f"({page_size}) tokens"
        )
    is_own = load_format == "auto"
    overlaps = kind != "cpu" if options.overlap_schedule is None else options.overlap_schedule
    per_device: dict[str, Any]
    if kind == "cpu":
        # Plain torch on a CPU; on a GPU, SGLang chooses by the hardware.
        per_device = {
            "attention_backend": "torch_native",
            "mem_fraction_static": 0.3,
            "disable_cuda_graph": True,
        }
    else:
        per_device = {
            "base_gpu_id": device_index(options),
            "disable_cuda_graph": not options.cuda_graph,
            # Our decoder lays out prompts on the host; SGLang's own text models can be captured whole.
            "disable_prefill_cuda_graph": not (is_own and options.prefill_cuda_graph),
            "cuda_graph_max_bs_prefill": _captured_tokens(options),
            "cuda_graph_max_bs_decode": options.max_running_requests,
        }
        if options.mem_fraction_static is not None:
            per_device["mem_fraction_static"] = options.mem_fraction_static
        if options.attention_backend is not None:
            per_device["attention_backend"] = options.attention_backend
    return ServerArgs(
        model_path=str(model_path),
        load_format=load_format,
        device=kind,
        dtype=options.dtype,
        tp_size=options.tp.size,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_overlap_schedule=not (steps_ahead and overlaps),
        disable_custom_all_reduce=kind == "cpu" or os.environ.get(CUSTOM_ALL_REDUCE) != "1",
        chunked_prefill_size=options.chunked_prefill_size,
        max_total_tokens=options.max_total_tokens + _POOL_SLACK * page_size,
        max_running_requests=options.max_running_requests,
        page_size=page_size,
        disable_radix_cache=not options.prefix_cache,
        # One pool for all layers: the scheduler here counts its tokens.
        disable_hybrid_swa_memory=True,
        skip_tokenizer_init=True,
        random_seed=0,
        log_level="warning",
        **per_device,
        **lora_settings(options),
    )
