"""The kernels that SGLang compiles for the GPU at hand, compiled before weights are read.

SGLang compiles a kernel when a step first calls it, and again when its sources or compilers have changed. It
keeps what it compiles in SGLANG_JIT_CACHE_DIR, or in ``~/.cache/sglang/jit``, and of processes that want the
same kernel lets one compile it. Here all of this happens first: a start that cannot compile ends within
seconds.

Written for SGLang 0.5.23: what it compiles has private names.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sglang.kernels.jit.utils import parallel_compile
from sglang.kernels.jit.utils.compile import ninja
from sglang.kernels.ops.activation.activation import activation_module
from sglang.kernels.ops.attention.clamp_position import _jit_clamp_position_module
from sglang.kernels.ops.attention.rope import _jit_fused_rope_module
from sglang.kernels.ops.layernorm.norm import _jit_qknorm_module
from sglang.kernels.ops.moe.moe_topk_softmax import _jit_moe_topk_softmax_module

from sglang_omni.model_runner.config import DecoderConfig

logger = logging.getLogger(__name__)

# Of heads, for which SGLang has kernels of rotary embeddings and of norms.
_ROPE_DIMS = (64, 128, 256, 512)
_NORM_DIMS = (*_ROPE_DIMS, 1024)
# The line of a compiler's output that says why it failed.
_REASON = re.compile(r"error:|fatal|not found|cannot find|no space", re.IGNORECASE)


def build_kernels(dtype: torch.dtype, config: DecoderConfig | None) -> None:
    """Compiles the kernels of nearly every step, those that are not kept from an earlier start.

    Args:
        dtype: The activations'.
        config: The decoder's shape, if it is known: what depends on it is compiled too.

    Raises:
        ImportError: One cannot be compiled or loaded.
    """
    _announce_builds()
    try:
        parallel_compile(_modules(dtype, config))
    except (OSError, RuntimeError) as failure:
        raise ImportError(
            f"SGLang cannot compile its kernels for this GPU: {_reason(failure)}", name="sglang"
        ) from failure


def _modules(dtype: torch.dtype, config: DecoderConfig | None) -> list[Callable[[], Any]]:
    modules: list[Callable[[], Any]] = [
        functools.partial(_jit_clamp_position_module, torch.int64),
        functools.partial(activation_module, dtype),
    ]
    if config is None:
        return modules
    # Positions on three axes turn by a kernel of Triton's.
    if config.mrope_section is None:
        if config.head_dim in _ROPE_DIMS:
            modules.append(functools.partial(_jit_fused_rope_module, True, config.head_dim, dtype, dtype))
        if config.qk_norm and config.head_dim in _NORM_DIMS:
            modules.append(functools.partial(_jit_qknorm_module, config.head_dim, dtype))
    if config.num_experts:
        modules.append(functools.partial(_jit_moe_topk_softmax_module, dtype))
    return modules


def _announce_builds() -> None:
    """Has each compilation logged, also of kernels that a later step needs."""
    build = ninja.build
    if hasattr(build, "__wrapped__"):
        return

    @functools.wraps(build)
    def announced(*, spec: Any, **rest: Any) -> Path:
        logger.info("Compiling SGLang's kernel %s for this GPU, once per machine", spec.module_args[0])
        library: Path = build(spec=spec, **rest)
        return library

    ninja.build = announced


def _reason(failure: Exception) -> str:
    lines = [line.strip() for line in str(failure).splitlines()]
    return next((line for line in lines if _REASON.search(line)), lines[0] if lines else repr(failure))
