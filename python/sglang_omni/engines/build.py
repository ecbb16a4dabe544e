"""Builds an engine of either kind from a decoder's description."""

from __future__ import annotations

import torch

from sglang_omni.engines.base import Engine
from sglang_omni.engines.batching import BatchBuilder
from sglang_omni.engines.engine import OmniEngine
from sglang_omni.engines.iteration import IterationController
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
from sglang_omni.engines.planner import BatchPlanner
from sglang_omni.engines.quantization import refuse_quantization
from sglang_omni.engines.request import EngineRequest
from sglang_omni.engines.resources import ResourceManager
from sglang_omni.engines.scheduler import BatchScheduler
from sglang_omni.model_runner import Decoder, ModelRunner, PagedKVCache
from sglang_omni.model_runner.feedback_runner import FeedbackARModelRunner
from sglang_omni.model_runner.loader import DTYPES, Checkpoint
from sglang_omni.model_runner.parallel import TensorParallelGroup

PAGE_SIZE = 16


def build_engine(kind: EngineKind, spec: DecoderSpec, options: EngineOptions) -> Engine[EngineRequest]:
    """An engine for ``spec``. Both kinds give the same tokens; they differ in speed.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong.
    """
    if kind == "sglang":
        if spec.open_checkpoint is not Checkpoint:
            raise ValueError(
                f"SGLang cannot read {spec.model_path}, whose tensors are named or laid out differently: "
                "use the engine 'omni'"
            )
        from sglang_omni.engines.sglang.build import build_sglang_engine

        return build_sglang_engine(spec, options)
    if kind == "omni":
        return build_omni_engine(spec, options)
    raise ValueError(f"engine {kind!r} is not known; there are 'omni' and 'sglang'")


def build_omni_engine(spec: DecoderSpec, options: EngineOptions) -> OmniEngine:
    """An engine on the CPU with a scheduler and KV cache of its own.

    Raises:
        FileNotFoundError, ValueError: The checkpoint or an option is wrong.
    """
    if options.dtype not in DTYPES:
        raise ValueError(f"dtype {options.dtype!r} is not supported; known: {', '.join(DTYPES)}")
    if torch.device(options.device).type != "cpu":
        raise ValueError(f"engine 'omni' computes on the CPU, not on {options.device!r}: use engine 'sglang'")
    refuse_quantization(spec.model_path, options)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    tp = options.tp
    model = Decoder.from_checkpoint(
        spec.model_path,
        DTYPES[options.dtype],
        spec.config,
        spec.weights,
        spec.component,
        spec.open_checkpoint,
        TensorParallelGroup.join(tp.rank, tp.size, tp.port, options.device),
    )
    config = model.config
    page_size = options.page_size or PAGE_SIZE
    num_pages = options.max_total_tokens // page_size
    if num_pages == 0:
        raise ValueError(
            f"max_total_tokens ({options.max_total_tokens}) must hold at least one page of {page_size} tokens"
        )
    cache = PagedKVCache(
        config, num_pages=num_pages, page_size=page_size, dtype=model.dtype, capture_layer=spec.capture_layer
    )
    scheduler = BatchScheduler(
        BatchPlanner(
            max_running_requests=options.max_running_requests,
            chunked_prefill_size=options.max_total_tokens
            if options.chunked_prefill_size == -1
            else options.chunked_prefill_size,
        ),
        ResourceManager(num_pages, page_size, prefix_cache=options.prefix_cache),
        IterationController(config.eos_token_ids),
        vocab_size=config.vocab_size,
        context_length=min(
            options.context_length or config.max_position_embeddings, config.max_position_embeddings
        ),
    )
    builder = BatchBuilder(config, page_size=page_size, dtype=model.dtype)
    return OmniEngine(scheduler, builder, _build_runner(spec, model, cache))


def _build_runner(spec: DecoderSpec, model: Decoder, cache: PagedKVCache) -> ModelRunner:
    if spec.strategy is not None:
        return FeedbackARModelRunner(model, cache, spec.strategy, spec.suppress_token_ids)
    if spec.config.mrope_section is not None:
        from sglang_omni.model_runner.thinker_runner import ThinkerModelRunner

        return ThinkerModelRunner(model, cache, spec.suppress_token_ids)
    return ModelRunner(model, cache, spec.suppress_token_ids)
