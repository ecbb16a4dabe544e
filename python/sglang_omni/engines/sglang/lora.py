"""LoRA adapters in SGLang: their names for it, and what lets it load them on a CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sglang_omni.engines.options import EngineOptions


def adapters(options: EngineOptions) -> list[Any]:
    """SGLang's ``LoRARef`` of each adapter, whose id is the same in all ranks."""
    from sglang.srt.lora.lora_registry import LoRARef

    return [
        LoRARef(lora_id=LoRARef.deterministic_id(name, path), lora_name=name, lora_path=path, pinned=False)
        for name, path in options.lora_paths.items()
    ]


def lora_settings(options: EngineOptions) -> dict[str, Any]:
    """The fields of SGLang's ``ServerArgs`` for the adapters; none without any."""
    if not options.lora_paths:
        return {}
    fields = {
        "enable_lora": True,
        "lora_paths": adapters(options),
        "max_loras_per_batch": options.max_loras_per_batch,
    }
    # SGLang's other ways are kernels for GPUs.
    return {**fields, "lora_backend": "torch_native"} if options.device == "cpu" else fields


def computing(options: EngineOptions) -> AbstractContextManager[Any]:
    """What SGLang's work with adapters needs around it."""
    if options.lora_paths and options.device == "cpu":
        return _Unpinned()
    return nullcontext()


class _Unpinned(TorchFunctionMode):
    """SGLang pins what belongs to adapters, for copies to a GPU; without a driver, pinning is an error."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        given = dict(kwargs or {})
        given.pop("pin_memory", None)
        return func(*args, **given)
