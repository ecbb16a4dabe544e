"""The stage factories of Fish Audio S2-Pro; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.loading import available_cores, loading
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.options import Dtype
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
    dtype: Dtype = "float32",
    num_threads: int | None = None,
    max_running_requests: int = 16,
    max_total_tokens: int = 32_768,
    chunked_prefill_size: int = 512,
) -> OmniScheduler:
    """The stage from a prompt to frames of codes, on engine ``omni`` and a CPU.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
        dtype: Of the weights and of the computation.
        num_threads: CPU threads; all cores by default.
        max_running_requests: Texts spoken at the same time.
        max_total_tokens: Size of their common KV cache.
        chunked_prefill_size: Tokens of one step; a longer prompt takes several steps.
    """
    from sglang_omni.engines import EngineOptions, build_engine
    from sglang_omni.model_runner.loader import DTYPES
    from sglang_omni.models.fish_s2_pro.components.dual_ar import FishDualARStrategy, dual_ar_decoder
    from sglang_omni.models.fish_s2_pro.dual_ar import DualAR
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    checkpoint = FishS2Checkpoint.from_dir(model_path)
    with loading(f"the decoders of {checkpoint.path}"):
        strategy = FishDualARStrategy.from_checkpoint(checkpoint, DTYPES[dtype])
        engine = build_engine(
            "omni",
            dual_ar_decoder(checkpoint, strategy),
            EngineOptions(
                dtype=dtype,
                num_threads=num_threads or available_cores(),
                max_running_requests=max_running_requests,
                max_total_tokens=max_total_tokens,
                chunked_prefill_size=chunked_prefill_size,
                prefix_cache=False,
            ),
        )
    dual_ar = DualAR(checkpoint)
    return OmniScheduler(engine, dual_ar.build_request, dual_ar.result)
