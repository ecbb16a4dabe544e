"""Builds an engine of either kind from a decoder's description."""

from __future__ import annotations

import logging

import torch

from sglang_omni.engines.base import TokenEngine
from sglang_omni.engines.batching import BatchBuilder
from sglang_omni.engines.cache_events import CacheEvents
from sglang_omni.engines.engine import OmniEngine
from sglang_omni.engines.event_publisher import EventPublisher
from sglang_omni.engines.iteration import IterationController
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
from sglang_omni.engines.planner import BatchPlanner
from sglang_omni.engines.quantization import refuse_quantization
from sglang_omni.engines.resources import ResourceManager
from sglang_omni.engines.scheduler import BatchScheduler
from sglang_omni.model_runner import attention
from sglang_omni.model_runner.added_rows import AddedRowsModelRunner
from sglang_omni.model_runner.cuda_graphs import recorder_for
from sglang_omni.model_runner.decode_step import DecodeStep
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.feedback_runner import FeedbackARModelRunner
from sglang_omni.model_runner.headers import header_report
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.loader import DTYPES
from sglang_omni.model_runner.parallel import TensorParallelGroup
from sglang_omni.model_runner.runner import ModelRunner
from sglang_omni.proto.kv_events import KvEventsConfig

logger = logging.getLogger(__name__)

# Of caches whose keys and values are gathered.
PAGE_SIZE = 16


def build_engine(kind: EngineKind | None, spec: DecoderSpec, options: EngineOptions) -> TokenEngine:
    """An engine for ``spec``. Both kinds give the same tokens; they differ in speed.

    Args:
        kind: None for "omni" on a CPU, where it measured faster, and on a GPU for "sglang"; or if SGLang
            cannot be loaded there, for "omni" with a warning.
        spec: The decoder.
        options: The engine's options.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong.
    """
    if (report := header_report()) is not None:
        on_gpu = report.device == "cuda"
        default = f"{'sglang' if on_gpu else 'omni'}, the default on a {'GPU' if on_gpu else 'CPU'}"
        report.engine = report.engine or kind or default
        # Both engines read the same tensors.
        return build_omni_engine(spec, options)
    if kind is None and torch.device(options.device).type != "cpu":
        try:
            return build_engine("sglang", spec, options)
        except ImportError as exc:
            logger.warning(
                "SGLang cannot be used, so that engine 'omni' computes %s: %s", spec.model_path, exc
            )
    if kind == "sglang":
        if options.kv_events_config is not None:
            raise ValueError("kv_events_config needs engine 'omni', which publishes: set --engine omni")
        from sglang_omni.engines.sglang.build import build_sglang_engine

        return build_sglang_engine(spec, options)
    if kind in (None, "omni"):
        return build_omni_engine(spec, options)
    raise ValueError(f"engine {kind!r} is not known; there are 'omni' and 'sglang'")


def build_omni_engine(spec: DecoderSpec, options: EngineOptions) -> OmniEngine:
    """An engine with a scheduler and KV cache of its own, on a CPU or a GPU.

    On a GPU, torch's attention over paged caches wants large pages: without ``page_size``, they are of 256
    tokens if it can be used, and of 16 if not.

    Raises:
        FileNotFoundError, ValueError: The checkpoint or an option is wrong.
    """
    if options.dtype not in DTYPES:
        raise ValueError(f"dtype {options.dtype!r} is not supported; known: {', '.join(DTYPES)}")
    if options.lora_paths:
        raise ValueError("LoRA adapters need engine 'sglang': leave --engine or --lora-paths out")
    device = torch.device(options.device)
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
        device,
    )
    config = model.config
    page_size = options.page_size or attention.PAGE_SIZE
    gathers = attention.why_not_paged(config, model.dtype, device, page_size)
    if gathers:
        page_size = options.page_size or PAGE_SIZE
        if device.type == "cuda":
            logger.warning(
                "Attention gathers keys and values for each layer, and no CUDA graph replays a step: %s",
                gathers,
            )
    num_pages = options.max_total_tokens // page_size
    if num_pages == 0:
        raise ValueError(
            f"max_total_tokens ({options.max_total_tokens}) must hold at least one page of {page_size} tokens"
        )
    cache = PagedKVCache(
        config,
        num_pages=num_pages,
        page_size=page_size,
        dtype=model.dtype,
        capture_layer=spec.capture_layer,
        device=device,
    )
    context_length = min(
        options.context_length or config.max_position_embeddings, config.max_position_embeddings
    )
    decode = None
    if not gathers:
        max_pages = min(num_pages, -(-context_length // page_size))
        decode = DecodeStep(
            model,
            cache,
            max_sequences=options.max_running_requests,
            max_pages=max_pages,
            captures=spec.captures_all,
        )
        recorder = recorder_for(device, cuda_graph=options.cuda_graph and tp.size == 1)
        if recorder is not None:
            decode.record_graphs(recorder, options.max_running_requests)
    scheduler = BatchScheduler(
        BatchPlanner(
            max_running_requests=options.max_running_requests,
            chunked_prefill_size=options.max_total_tokens
            if options.chunked_prefill_size == -1
            else options.chunked_prefill_size,
        ),
        ResourceManager(
            num_pages,
            page_size,
            prefix_cache=options.prefix_cache,
            events=_cache_events(options, page_size),
        ),
        IterationController(config.eos_token_ids),
        vocab_size=config.vocab_size,
        context_length=context_length,
    )
    builder = BatchBuilder(config, page_size=page_size, dtype=model.dtype, device=device, decode=decode)
    return OmniEngine(scheduler, builder, _build_runner(spec, model, cache, decode))


def _cache_events(options: EngineOptions, page_size: int) -> CacheEvents | None:
    """Of ranks that compute together, the first one publishes what they cache."""
    # Of headers nothing runs that could publish.
    if options.kv_events_config is None or options.tp.rank > 0 or header_report() is not None:
        return None
    config = KvEventsConfig.parse(options.kv_events_config)
    if not config.publishes:
        return None
    if not options.prefix_cache:
        raise ValueError("kv_events_config: without the prefix cache there are no events: leave one out")
    return CacheEvents(EventPublisher(config).publish, page_size)


def _build_runner(
    spec: DecoderSpec, model: Decoder, cache: PagedKVCache, decode: DecodeStep | None
) -> ModelRunner:
    if spec.strategy is not None:
        return FeedbackARModelRunner(model, cache, spec.strategy, spec.suppress_token_ids, decode)
    if spec.added_rows is not None:
        return AddedRowsModelRunner(spec.added_rows, model, cache, spec.suppress_token_ids, decode)
    if spec.takes_media or spec.config.mrope_section is not None:
        from sglang_omni.model_runner.thinker_runner import ThinkerModelRunner

        return ThinkerModelRunner(
            model, cache, spec.suppress_token_ids, decode, captures_all=spec.captures_all
        )
    return ModelRunner(model, cache, spec.suppress_token_ids, decode)
