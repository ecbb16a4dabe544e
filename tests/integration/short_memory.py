"""A thinker on a machine with memory for a smaller KV pool than the option asks for."""

from __future__ import annotations

from typing import Any

REAL_POOL = 300


def create_thinker(model_path: str, max_total_tokens: int = 4096) -> Any:
    from sglang_omni.engines.sglang import compat

    compat.prepare("cpu")
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    from sglang_omni.models.qwen3_omni import stages

    constrain = KVCacheConfigurator._apply_token_constraints
    KVCacheConfigurator._apply_token_constraints = lambda self, tokens: min(
        constrain(self, tokens), REAL_POOL
    )
    return stages.create_thinker(
        model_path, engine="sglang", max_total_tokens=max_total_tokens, dtype="float32"
    )
