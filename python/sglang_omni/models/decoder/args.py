"""The options of a decoder's engine, as the factories of stages take them: one list for all decoders.

A factory has them as ``**args: Unpack[DecoderArgs]`` and passes them to ``decoder_options``; the config
checks names without importing the factory's module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from sglang_omni.engines.options import DtypeChoice


class DecoderArgs(TypedDict, total=False):
    """Of any decoder.

    Attributes:
        dtype: Of weights and computation. By default, as for ``"auto"``, float32 on a CPU, and on a GPU
            bfloat16, or float16 if the weights are stored so. Half precision rounds so coarsely that a greedy
            answer may depend on what else is computed; with float32 it does not.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; by default half of the cores, which leaves the rest to other processes.
        max_running_requests: Answers made at the same time. By default 16 on a CPU, and on a GPU as the stage
            and the KV cache suggest; others wait in line.
        max_total_tokens: Size of their common KV cache; by default on a CPU the stage's, and on a GPU as many
            as its share of the GPU has room for.
        chunked_prefill_size: Tokens of one step; a longer prompt takes several steps. By default the stage's.
        kv_cache_dtype: SGLang's name; ``"auto"`` is ``dtype``.
        attention_backend: SGLang's name; None for its choice by the GPU.
        cuda_graph: False to launch each kernel of a step on a GPU on its own.
        overlap_schedule: True if SGLang launches a step before the tokens of the last one are read; None for
            yes on a GPU. Of no effect on talkers, and on thinkers that answer in speech.
        mem_fraction_static: Share of the GPU's memory for weights and KV cache, as SGLang counts.
        total_gpu_memory_fraction: Share of the GPU's memory for all that the stage takes there.
    """

    dtype: DtypeChoice | None
    gpu_id: int | None
    num_threads: int | None
    max_running_requests: int | None
    max_total_tokens: int | None
    chunked_prefill_size: int | None
    kv_cache_dtype: str
    attention_backend: str | None
    cuda_graph: bool
    overlap_schedule: bool | None
    mem_fraction_static: float | None
    total_gpu_memory_fraction: float | None


class ThinkerArgs(DecoderArgs, total=False):
    """Of a decoder that writes text.

    Attributes:
        quantization: SGLang's name; None for the one that the checkpoint names, if any.
        context_length: A shorter context than the checkpoint's.
        prefix_cache: False if requests share no keys and values of common prefixes.
        kv_events_config: Where engine ``"omni"`` publishes what enters and leaves that cache: vLLM's JSON.
        tp_rank: This process's rank.
        tp_size: The number of ranks.
        nccl_port: Port at which the ranks meet.
    """

    quantization: str | None
    context_length: int | None
    prefix_cache: bool
    kv_events_config: str | None
    tp_rank: int
    tp_size: int
    nccl_port: int | None


class LanguageModelArgs(ThinkerArgs, total=False):
    """Of a decoder of text alone, which SGLang may compute with a class of its own.

    Attributes:
        prefill_cuda_graph: True if SGLang captures prompts as CUDA graphs, too; None for yes if memory
            allows.
    """

    prefill_cuda_graph: bool | None


class ChatArgs(TypedDict, total=False):
    """Of a stage that makes prompts of messages.

    Attributes:
        context_length: A shorter context than the checkpoint's.
        chat_template: The file of a template to take instead of the checkpoint's.
        tool_call_parser: The name of the format in which the model writes calls of tools; None for the one
            that its chat template shows.
        reasoning_parser: The name of the marks around what the model thinks, or ``"none"`` to leave them in
            the answer; None for those that its chat template shows.
    """

    context_length: int | None
    chat_template: str | None
    tool_call_parser: str | None
    reasoning_parser: str | None
