"""The stage factories of Fish Audio S2-Pro; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import Dtype, EngineKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def create_preprocess(model_path: str) -> SimpleScheduler:
    """The stage from a text, and perhaps a voice, to a prompt.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
    """
    from sglang_omni.models.fish_s2_pro.preprocess import FishS2Preprocessor
    from sglang_omni.preprocessing.text import load_tokenizer

    preprocessor = FishS2Preprocessor(FishS2Checkpoint.from_dir(model_path), load_tokenizer(model_path))
    # Tokenizing releases the interpreter's lock: a long text does not delay a short one.
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_dual_ar(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    dtype: Dtype | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    max_running_requests: int = 16,
    max_total_tokens: int = 32_768,
    chunked_prefill_size: int = 512,
    mem_fraction_static: float | None = None,
    cuda_graph: bool = True,
) -> OmniScheduler:
    """The stage from a prompt to frames of codes.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
        engine: ``"sglang"``, the default on a GPU if it is installed, or ``"omni"``, the default on a CPU.
        dtype: Of weights and computation; float32 on a CPU and bfloat16 on a GPU by default.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; all cores by default.
        max_running_requests: Texts spoken at the same time.
        max_total_tokens: Size of their common KV cache.
        chunked_prefill_size: Tokens of one step; a longer prompt takes several steps.
        mem_fraction_static: Share of the GPU's memory for weights and KV cache, on SGLang.
        cuda_graph: Whether steps on a GPU are captured as CUDA graphs if they can be.
    """
    from sglang_omni.engines import EngineOptions, build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.fish_s2_pro.components.dual_ar import FishDualARStrategy, dual_ar_decoder
    from sglang_omni.models.fish_s2_pro.dual_ar import DualAR
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = FishS2Checkpoint.from_dir(model_path)
    computed_in, device = placement(dtype, gpu_id)
    with loading(f"the decoders of {checkpoint.path}, {computed_in} on {device},"):
        strategy = FishDualARStrategy.from_checkpoint(checkpoint, DTYPES[computed_in], device)
        built = build_engine(
            engine,
            dual_ar_decoder(checkpoint, strategy),
            EngineOptions(
                dtype=computed_in,
                device=device,
                mem_fraction_static=mem_fraction_static,
                cuda_graph=cuda_graph,
                num_threads=num_threads or available_cores(),
                max_running_requests=max_running_requests,
                max_total_tokens=max_total_tokens,
                chunked_prefill_size=chunked_prefill_size,
                prefix_cache=False,
            ),
        )
        strategy.record_graphs(max_running_requests, cuda_graph=cuda_graph)
    dual_ar = DualAR(checkpoint)
    return OmniScheduler(built, dual_ar.build_request, dual_ar.result)
