"""The size of SGLang's KV pool, from our own budget.

SGLang sizes a pool by the GPU's free memory before and after it loads the weights. If several processes load
onto one GPU, each other's weights count as its own, and the pool comes out too small or negative.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.sglang.settings import pool_tokens

logger = logging.getLogger(__name__)

_GIB = 1 << 30


@contextmanager
def own_pool(options: EngineOptions) -> Iterator[None]:
    """Inside, SGLang builds pools of exactly the tokens that the options ask for, or raises.

    ``mem_fraction_static`` leaves the size to SGLang, as does a CPU without ``memory_bytes``, and a model
    whose cache is not the same for every token (sliding windows, Mamba).

    Raises:
        ValueError: While SGLang builds the pool: it does not fit ``memory_bytes``, or the free memory.
    """
    if options.mem_fraction_static is not None or (options.device == "cpu" and options.memory_bytes is None):
        yield
        return
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    profile = KVCacheConfigurator._profile_available_bytes
    constrain = KVCacheConfigurator._apply_token_constraints
    before = _allocated(options)

    def available(self: Any, pre_model_load_memory: int) -> int:
        if not _is_plain(self):
            logger.warning("SGLang sizes the KV cache of this model by the memory that it finds free")
            return int(profile(self, pre_model_load_memory))
        tokens = pool_tokens(options, self.page_size)
        num_bytes = tokens * _token_bytes(self)
        _check(options, tokens, num_bytes, _allocated(options) - before, _free(self))
        return num_bytes

    def tokens_of(self: Any, token_capacity: int) -> int:
        return token_capacity if _is_plain(self) else int(constrain(self, token_capacity))

    KVCacheConfigurator._profile_available_bytes = available
    KVCacheConfigurator._apply_token_constraints = tokens_of
    try:
        yield
    finally:
        KVCacheConfigurator._profile_available_bytes = profile
        KVCacheConfigurator._apply_token_constraints = constrain


def _is_plain(configurator: Any) -> bool:
    """True if every token takes the same room of one pool, and nothing else is kept."""
    return not configurator.is_hybrid_swa and configurator.mambaish_config is None


def _token_bytes(configurator: Any) -> int:
    from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator

    return int(create_memory_pool_configurator(configurator)._cell_size)


def _allocated(options: EngineOptions) -> int:
    """Bytes that this process's tensors take of the engine's device."""
    return 0 if options.device == "cpu" else torch.cuda.memory_allocated(options.device)


def _free(configurator: Any) -> int:
    """Bytes that no process has taken of the device."""
    from sglang.srt.mem_cache import kv_cache_configurator

    return int(
        kv_cache_configurator.get_available_gpu_memory(configurator.device, configurator.gpu_id) * _GIB
    )


def _check(options: EngineOptions, tokens: int, num_bytes: int, weights: int, free: int) -> None:
    wanted = f"a KV cache of {tokens} tokens takes {num_bytes / _GIB:.2f} GiB"
    smaller = "take a smaller --max-total-tokens"
    if options.memory_bytes is not None and weights + num_bytes > options.memory_bytes:
        raise ValueError(
            f"{wanted} and the loaded weights {weights / _GIB:.2f} GiB, more than this stage's share of "
            f"{options.device}, {options.memory_bytes / _GIB:.2f} GiB: {smaller}, or raise the stage's "
            "total_gpu_memory_fraction"
        )
    if num_bytes + options.workspace_bytes > free:
        raise ValueError(
            f"{wanted}, steps and graphs {options.workspace_bytes / _GIB:.2f} GiB, and {options.device} has "
            f"{free / _GIB:.2f} GiB left: {smaller}, or end what else runs there"
        )
