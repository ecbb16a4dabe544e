"""What decoders take of a GPU or of a CPU's memory, for the pipelines of all model families.

Estimates for a GPU are rounded up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import CONTEXT_BYTES, MemoryDemand, choose, reserve_of
from sglang_omni.config.plan.memory_plan import MIB, PROMPT_GRAPH_TOKENS, Setting, StageMemory, gib
from sglang_omni.config.plan.weights import (
    ITEM_BYTES,
    ONLINE_QUANTIZATIONS,
    TensorSize,
    loaded_bytes,
    tensor_sizes,
)
from sglang_omni.gpus import visible_gpus
from sglang_omni.model_runner.config import DecoderConfig, missing_field

# Requests at once to choose from, the most first, and with how many tokens of the KV cache for each; the last
# with any.
GPU_REQUESTS = (256, 128, 64)
_TOKENS_PER_REQUEST = 512
# The KV pool of a language model on a CPU, in tokens.
CPU_TOKENS = 16_384
GPU_STEPS = (8192, 4096, 2048, 1024)
# Pools in tokens: the smallest that is of use, and one that holds a long video, worth a smaller step.
_LEAST_TOKENS, _WANTED_TOKENS = 8192, 28_672
# Buffers of attention kernels (FlashInfer's is 384 MiB), of cuBLAS and of NCCL.
_LIBRARIES = 512 * MIB
# SGLang's own estimate of the graphs of decode steps is 2 MB a request.
_GRAPHS_PER_REQUEST = 4 * MIB
# Its own estimate of a graph of prompts is 8 MiB beside the activations; of up to ``PROMPT_GRAPH_TOKENS``
# there are 42.
_PROMPT_GRAPHS = 42 * 8 * MIB
# The driver gives memory in blocks of 2 MiB, of which half of one is left over by each tensor of a KV pool.
_PART_OF_BLOCK = MIB
# Of a logit: it, its probability, and both in order with their places, sums and masks.
_SAMPLING_BYTES = 40
_NAMES_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# torch's allocator keeps freed blocks of other sizes.
_FRAGMENTS = 1.5


def decoder_demand(
    config: DecoderConfig,
    args: Mapping[str, Any],
    weights: int,
    *,
    loading: int = 0,
    extra_token_bytes: int = 0,
    max_running_requests: int | None = None,
    steps: tuple[int, ...] = GPU_STEPS,
    most_tokens: int | None = None,
    weight: int = 1,
    cpu_tokens: int = CPU_TOKENS,
    captures_prompts: bool = False,
) -> MemoryDemand:
    """The demand of one rank of a decoder.

    Args:
        config: The decoder's shape.
        args: What its factory gets; ``dtype``, ``kv_cache_dtype``, ``tp_size``, ``max_running_requests``,
            ``max_total_tokens``, ``chunked_prefill_size``, ``prefill_cuda_graph`` and
            ``mem_fraction_static`` are read, and ``device`` of ``CountsMemory``.
        weights: Bytes of all ranks' weights.
        loading: Bytes that they take while they are loaded, if these are more.
        extra_token_bytes: Kept for each token of the KV pool beside keys and values.
        max_running_requests: The default; None for what suits the KV pool.
        steps: Sizes of a step in tokens to choose from, the best first.
        most_tokens: The largest useful pool; None for that of as many requests as run, each of full length.
        weight: How much of the room left it gets, relative to other decoders on the GPU.
        cpu_tokens: The default pool on a CPU.
        captures_prompts: True if its engine captures prompts as CUDA graphs, too.
    """
    ranks = int(args.get("tp_size") or 1)
    item = ITEM_BYTES[dtype_of(args)]
    running = args.get("max_running_requests") or max_running_requests
    requests = GPU_REQUESTS if running is None else (int(running),)
    given = args.get("max_total_tokens")
    if given is None and args.get("device") == "cpu":
        given = cpu_tokens
    step = args.get("chunked_prefill_size")
    longest = min(int(args.get("context_length") or config.max_position_embeddings), 131_072)
    # -1 is whole prompts.
    if step is not None:
        steps = (int(step) if step > 0 else longest,)
    step_bytes = _step_bytes(config, item, ranks)
    most = most_tokens or requests[0] * longest
    captured: tuple[bool | None, ...] = (None,)
    if captures_prompts:
        wish = args.get("prefill_cuda_graph")
        captured = (True, False) if wish is None else (bool(wish),)

    def setting(running: int, prompts: bool | None, step: int, wanted: int) -> Setting:
        graphs = _PROMPT_GRAPHS + min(step, PROMPT_GRAPH_TOKENS) * step_bytes if prompts else 0
        # When tokens are chosen, the step's activations are gone.
        activations = max(step * step_bytes, running * config.vocab_size * _SAMPLING_BYTES)
        workspace = running * _GRAPHS_PER_REQUEST + activations + graphs
        return Setting(running, step, workspace, max(_LEAST_TOKENS, min(wanted, most)), prompts)

    # Where memory is short, first fewer requests run, then steps are smaller, then prompts are not captured.
    *many, few = requests
    settings = [setting(each, captured[0], steps[0], each * _TOKENS_PER_REQUEST) for each in many]
    settings += [setting(few, prompts, step, _WANTED_TOKENS) for prompts in captured for step in steps]

    demand = MemoryDemand(
        weights=weights // ranks,
        workspace=_LIBRARIES + 2 * config.num_hidden_layers * _PART_OF_BLOCK,
        loading=loading // ranks + _LIBRARIES if loading else 0,
        token_bytes=kv_token_bytes(config, args) + extra_token_bytes,
        settings=tuple(settings),
        least_tokens=_LEAST_TOKENS,
        most_tokens=max(_LEAST_TOKENS, most),
        weight=weight,
        static_fraction=args.get("mem_fraction_static"),
    )
    return demand if given is None else demand.with_pool(int(given))


def _step_bytes(config: DecoderConfig, item: int, ranks: int) -> int:
    """Activations of a token of a step, with ``item`` bytes for each number."""
    heads = config.num_attention_heads // ranks
    width = 4 * config.hidden_size + (2 * heads + 2 * _kv_heads(config, ranks)) * config.head_dim
    if config.num_experts:
        inner = 3 * config.moe_intermediate_size // ranks
        # A token's row is there once for each of its experts, before and after.
        width += config.num_experts_per_tok * (inner + 2 * config.hidden_size)
        width += 3 * config.shared_expert_intermediate_size // ranks
    else:
        width += 3 * config.intermediate_size // ranks
    return int(_FRAGMENTS * item * width)


def dtype_of(args: Mapping[str, Any]) -> str:
    """What a stage on a GPU computes in, by ``dtype`` in its factory's arguments."""
    given = args.get("dtype")
    return "bfloat16" if given in (None, "auto") else str(given)


def kv_token_bytes(config: DecoderConfig, args: Mapping[str, Any]) -> int:
    """Bytes of a token's keys and values on one rank, by ``kv_cache_dtype``, ``dtype`` and ``tp_size``."""
    heads = _kv_heads(config, int(args.get("tp_size") or 1))
    return 2 * config.num_hidden_layers * heads * config.head_dim * _kv_item_bytes(args)


def _kv_item_bytes(args: Mapping[str, Any]) -> int:
    kind = args.get("kv_cache_dtype") or "auto"
    if kind in ("bf16", "bfloat16"):
        return 2
    return 1 if kind.startswith("fp8") else ITEM_BYTES[dtype_of(args)]


def _kv_heads(config: DecoderConfig, ranks: int) -> int:
    return max(1, config.num_key_value_heads // ranks)


def weights_and_loading(
    sizes: Sequence[TensorSize],
    prefixes: Sequence[str],
    args: Mapping[str, Any],
    stored_item: float | None = None,
) -> tuple[int, int]:
    """Bytes of weights, and of the same while they are loaded: 0 if these are no more.

    SGLang quantizes unquantized weights on the GPU after it has loaded all of them.

    Args:
        sizes: The checkpoint's tensors.
        prefixes: Of the names of those that are loaded.
        args: What the factory gets; ``dtype`` and ``quantization`` are read.
        stored_item: If set, of a checkpoint that holds the same weights with so many bytes for each number.
    """
    dtype = dtype_of(args)
    if stored_item is not None:
        return loaded_bytes(sizes, prefixes, dtype=dtype, linear_item=stored_item), 0
    item = ONLINE_QUANTIZATIONS.get(args.get("quantization"))
    weights = loaded_bytes(sizes, prefixes, dtype=dtype, linear_item=item)
    loading = loaded_bytes(sizes, prefixes, dtype=dtype) if item is not None else 0
    return weights, loading if loading > weights else 0


def text_model_demand(model_path: str | Path, args: Mapping[str, Any]) -> MemoryDemand:
    """The demand of one rank of a checkpoint that holds nothing but a language model, of any architecture.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read, or does not have its shape.
    """
    path = Path(model_path) / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields = {**fields, **(fields.get("text_config") or {})}
    try:
        shape = _shape_of(fields)
    except KeyError as exc:
        raise ValueError(f"{path}: {missing_field(exc)}") from exc
    except TypeError as exc:
        raise ValueError(f"{path} does not have the size of a token's keys and values: {exc!r}") from exc
    weights, loading = weights_and_loading(tensor_sizes(model_path), ("",), args)
    # SGLang's own classes alone do; which model gets one is known only when it is loaded.
    captures_prompts = args.get("engine") != "omni" and args.get("cuda_graph") is not False
    demand = decoder_demand(shape, args, weights, loading=loading, captures_prompts=captures_prompts)
    if fields.get("kv_lora_rank"):
        # Latent attention keeps one row, which every rank has.
        width = int(fields["kv_lora_rank"]) + int(fields["qk_rope_head_dim"])
        return replace(demand, token_bytes=shape.num_hidden_layers * width * _kv_item_bytes(args))
    return demand


def _shape_of(fields: Mapping[str, Any]) -> DecoderConfig:
    """The sizes of a decoder, also of one that only SGLang computes."""
    heads, hidden = int(fields["num_attention_heads"]), int(fields["hidden_size"])
    experts = next((fields[name] for name in _NAMES_OF_EXPERTS if fields.get(name)), 0)
    return DecoderConfig(
        model_type=str(fields["model_type"]),
        vocab_size=int(fields["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(fields.get("intermediate_size") or 4 * hidden),
        num_hidden_layers=int(fields["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or hidden // heads),
        max_position_embeddings=int(fields.get("max_position_embeddings") or 131_072),
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        num_experts=int(experts),
        num_experts_per_tok=int(fields.get("num_experts_per_tok") or 0),
        moe_intermediate_size=int(
            fields.get("moe_intermediate_size") or fields.get("intermediate_size") or 0
        ),
    )


def memory_on_gpu(demand: MemoryDemand, gpu_id: int, fraction: float | None) -> StageMemory:
    """What a stage gets of a GPU, as far as its config leaves it open.

    Args:
        demand: The stage's.
        gpu_id: Its GPU's index in this process.
        fraction: Its share of the GPU; None if it is alone there.

    Raises:
        ValueError: There is no such GPU, or no pool fits; one of a given size is not refused here.
    """
    total = _total_bytes(gpu_id)
    room = total - reserve_of(total, has_engine=True) if fraction is None else int(fraction * total)
    memory = choose(demand, room - CONTEXT_BYTES, total)
    if memory.total + CONTEXT_BYTES > room and demand.least_tokens < demand.most_tokens:
        raise ValueError(
            f"the stage needs {gib(memory.total + CONTEXT_BYTES)} of GPU {gpu_id}, and has {gib(room)}: "
            "raise its total_gpu_memory_fraction, or take a GPU with more memory"
        )
    return memory


def share_bytes(gpu_id: int, fraction: float | None) -> int | None:
    """``fraction`` of a GPU's memory in bytes; None for None."""
    return None if fraction is None else int(fraction * _total_bytes(gpu_id))


def _total_bytes(gpu_id: int) -> int:
    gpu = {gpu.index: gpu for gpu in visible_gpus()}.get(gpu_id)
    if gpu is None:
        raise ValueError(f"gpu {gpu_id}: this process sees no such GPU")
    return gpu.total_bytes
