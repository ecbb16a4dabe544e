"""The stage factories of a language model; each runs, and loads its model, in its stage's process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.decoder_options import DecoderDefaults, decoder_options
from sglang_omni.models.loading import loading
from sglang_omni.models.memory import CPU_TOKENS, text_model_demand
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.base import TokenEngine
    from sglang_omni.engines.options import DtypeChoice, EngineKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(16, CPU_TOKENS, 512)


def create_preprocess(
    model_path: str,
    *,
    context_length: int | None = None,
    chat_template: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> SimpleScheduler:
    """The stage from messages or a prompt to token ids.

    Args:
        model_path: Directory of a checkpoint, for its tokenizer and chat template.
        context_length: A shorter context than the checkpoint's.
        chat_template: The file of a template to take instead of the checkpoint's.
        tool_call_parser: The name of the format in which the model writes calls of tools; None for the one
            that its chat template tells.
        reasoning_parser: The name of the marks around what the model thinks, or ``"none"`` to leave them in
            the answer; None for those that its chat template tells.
    """
    from sglang_omni.answers.chat import ChatPrompts
    from sglang_omni.models.text.preprocess import TextPreprocessor
    from sglang_omni.preprocessing.text import PromptEncoder

    chats = ChatPrompts(
        PromptEncoder(model_path, context_length=context_length, chat_template=chat_template),
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
    )
    # Tokenizing releases the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(TextPreprocessor(chats), max_concurrency=4, sees_abort=True)


def create_thinker(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    dtype: DtypeChoice | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    attention_backend: str | None = None,
    cuda_graph: bool = True,
    prefill_cuda_graph: bool | None = None,
    overlap_schedule: bool | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    max_running_requests: int | None = None,
    max_total_tokens: int | None = None,
    chunked_prefill_size: int | None = None,
    context_length: int | None = None,
    prefix_cache: bool = True,
    lora_paths: Mapping[str, str] | None = None,
    max_loras_per_batch: int = 8,
    mem_fraction_static: float | None = None,
    total_gpu_memory_fraction: float | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    tp_rank: int = 0,
    tp_size: int = 1,
    nccl_port: int | None = None,
) -> OmniScheduler:
    """The stage from token ids to the answer, in text pieces while it is written.

    Args:
        model_path: Directory of a checkpoint.
        engine: ``"sglang"``, the default on a GPU and for models that only SGLang knows, or ``"omni"``.
        dtype: ``"auto"``, as None, is float32 on a CPU, and on a GPU the checkpoint's own 16 bits.
        quantization: SGLang's name; None for the one that the checkpoint names, if any.
        kv_cache_dtype: SGLang's name; ``"auto"`` is ``dtype``.
        attention_backend: SGLang's name; None for its choice by the GPU.
        cuda_graph: Whether steps on a GPU are captured as CUDA graphs.
        prefill_cuda_graph: Whether prompts are, too, by SGLang; by default if memory allows.
        overlap_schedule: True if SGLang launches a step before the tokens of the last one are read; None for
            yes on a GPU.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; by default half of the cores, which leaves the rest to other processes.
        max_running_requests: Answers written at the same time; by default 16 on a CPU, and on a GPU 64 to
            256, by the size of the KV cache.
        max_total_tokens: Size of their common KV cache; by default 16,384 on a CPU, and on a GPU as many as
            it has room for.
        chunked_prefill_size: Tokens of one step; by default 512 on a CPU, 8,192 on a GPU.
        context_length: A shorter context than the checkpoint's.
        prefix_cache: Whether requests share the keys and values of common prefixes.
        lora_paths: Directories of LoRA adapters in PEFT's layout, by the names that requests give them.
        max_loras_per_batch: Adapters in one step, the bare model counted as one.
        mem_fraction_static: Share of the GPU's memory for weights and KV cache, as SGLang counts.
        total_gpu_memory_fraction: Share of the GPU's memory for all that the stage takes there.
        tool_call_parser, reasoning_parser: As for the preprocess stage; a parser of SGLang is loaded here.
        tp_rank: This process's rank.
        tp_size: The number of ranks.
        nccl_port: Port at which the ranks meet.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong, or no engine knows the model.
    """
    from sglang_omni.answers.parsers import load_parsers
    from sglang_omni.engines.warm_up import text_requests
    from sglang_omni.models.text.thinker import TextThinker, sampling_defaults
    from sglang_omni.preprocessing.text import load_tokenizer
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    load_parsers(tool_call_parser, reasoning_parser)
    built = load_engine(
        Path(model_path),
        engine,
        dtype=dtype,
        gpu_id=gpu_id,
        num_threads=num_threads,
        max_running_requests=max_running_requests,
        max_total_tokens=max_total_tokens,
        chunked_prefill_size=chunked_prefill_size,
        context_length=context_length,
        prefix_cache=prefix_cache,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        attention_backend=attention_backend,
        cuda_graph=cuda_graph,
        prefill_cuda_graph=prefill_cuda_graph,
        overlap_schedule=overlap_schedule,
        lora_paths=dict(lora_paths or {}),
        max_loras_per_batch=max_loras_per_batch,
        mem_fraction_static=mem_fraction_static,
        total_gpu_memory_fraction=total_gpu_memory_fraction,
        tp=(tp_rank, tp_size, nccl_port),
    )
    thinker = TextThinker(
        load_tokenizer(model_path), sampling_defaults(Path(model_path)), built.config, lora_paths or ()
    )
    return OmniScheduler(
        built,
        thinker.build_request,
        thinker.result,
        thinker.stream,
        warm_up_requests=partial(text_requests, built),
    )


def load_engine(checkpoint: Path, engine: EngineKind | None, **options: Any) -> TokenEngine:
    """The engine of a text checkpoint, with defaults by device; also for the thinkers of other pipelines.

    Args:
        checkpoint: Its directory.
        engine: As for ``create_thinker``.
        options: What ``decoder_options`` takes.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong, or no engine knows the model.
    """
    from sglang_omni.engines.text import build_text_engine
    from sglang_omni.preprocessing.text import read_json

    fields = read_json(checkpoint / "config.json")
    chosen = decoder_options(
        _DEFAULTS,
        lambda args: text_model_demand(checkpoint, {**args, "engine": engine}),
        stored_dtype=fields.get("dtype") or fields.get("torch_dtype"),
        **options,
    )
    with loading(f"the language model from {checkpoint}, {chosen.dtype} on {chosen.device},"):
        return build_text_engine(engine, checkpoint, chosen)
