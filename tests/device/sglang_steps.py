"""Steps of the decoders made of SGLang's layers on the fake GPU, in their published sizes.

SGLang's kernels are stood in for by operations that make empty tensors, each counted as one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Step
from sglang_engines import engines
from torch import Tensor, nn

from sglang_omni.engines import DecoderSpec, EngineRequest, RequestSampling
from sglang_omni.model_runner.config import TALKER, THINKER, DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackModel, FeedbackSink, FeedbackWorker
from sglang_omni.model_runner.sequence import RotaryPositions, SequenceSpan

ROWS = 16
CAPTURE_LAYER = 24
PARTS: dict[str, Any] = {
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "head_dim": 128,
    "qk_norm": True,
    "mrope_section": (24, 20, 20),
    "num_experts": 128,
    "norm_topk_prob": True,
    "intermediate_size": 768,
}
THINKER_CONFIG = DecoderConfig(
    model_type=THINKER,
    vocab_size=152064,
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    **PARTS,
)
TALKER_CONFIG = DecoderConfig(
    model_type=TALKER,
    vocab_size=3072,
    hidden_size=1024,
    num_hidden_layers=20,
    num_attention_heads=16,
    num_key_value_heads=2,
    num_experts_per_tok=6,
    moe_intermediate_size=384,
    shared_expert_intermediate_size=768,
    **PARTS,
)


class RowsOnTheGpu:
    """A strategy that costs nothing."""

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> None:
        count = sum(span.num_tokens for span in requests)
        tp_worker.model.feedback.input_rows.append(
            torch.empty(count, TALKER_CONFIG.hidden_size, dtype=torch.bfloat16, device=DEVICE)
        )

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        rows = torch.empty(len(requests), TALKER_CONFIG.hidden_size, dtype=torch.bfloat16, device=DEVICE)
        model.feedback.input_rows.append(rows)

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        assert model.feedback.output_rows is not None
        assert model.feedback.output_rows.shape == (len(requests), TALKER_CONFIG.hidden_size)
        assert all(isinstance(token, int) for token in schedule_batch.tokens)


class Rope:
    def __call__(self, positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        assert positions.shape == (3, len(queries))
        assert positions.device == queries.device
        return torch.empty_like(queries), keys


def norm(module: nn.Module, rows: Tensor, residual: Tensor | None = None) -> Any:
    return torch.empty_like(rows) if residual is None else (torch.empty_like(rows), residual)


@contextmanager
def sglang_on_the_fake_gpu(checkpoint: Path) -> Iterator[None]:
    """SGLang's settings, as an engine of ``checkpoint`` has them, and stand-ins for its kernels."""
    with engines("sglang") as build:
        engine = build(DecoderSpec.from_dir(checkpoint))
        from sglang.srt.layers.activation import SiluAndMul
        from sglang.srt.layers.moe.topk import TopK

        from sglang_omni.engines.sglang.models import decoder

        def attend(module: nn.Module, queries: Tensor, keys: Tensor, values: Tensor, batch: Any) -> Tensor:
            return torch.empty_like(queries)

        with pytest.MonkeyPatch.context() as patch, engine._runtime.active():
            patch.setattr(decoder, "get_rope", lambda *args, **kwargs: Rope())
            patch.setattr(decoder.RMSNorm, "forward", norm)
            patch.setattr(decoder.RadixAttention, "forward", attend)
            patch.setattr(
                SiluAndMul, "forward", lambda module, rows: rows.new_empty(len(rows), rows.shape[1] // 2)
            )
            patch.setattr(TopK, "forward", lambda module, hidden, logits: torch.empty_like(logits))
            yield


def decoder_of(config: DecoderConfig, *, rows: int = ROWS, **spec: Any) -> Any:
    """In ``fake_gpu``: a decoder with what the scheduler allocates for it."""
    from sglang_omni.engines.sglang.models.decoder import OmniDecoder

    with torch.device(DEVICE):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = OmniDecoder(DecoderSpec(Path(), config, **spec))
        finally:
            torch.set_default_dtype(torch.float32)
    for layer in model.layers:
        layer.mlp.experts.forward = lambda hidden, chosen: torch.empty_like(hidden)
    model.allocate(rows, 4096)
    return model


def requests(
    params: RequestSampling, state: Callable[[], Any] = lambda: None, *, rows: int = ROWS
) -> list[EngineRequest]:
    """Each with 100 tokens of prompt and one of output."""
    positions = RotaryPositions(torch.arange(100).expand(3, -1), -20)
    return [
        EngineRequest(str(row), [1] * 100, params, state=state(), positions=positions, output_token_ids=[5])
        for row in range(rows)
    ]


def step(model: Any, asked: list[EngineRequest], *, extends: int = 0, strategy: Any = None) -> Step:
    """One step of the scheduler, as far as it is ours and not SGLang's planning.

    Args:
        extends: Tokens of each prompt in a step that extends; 0 for a step that decodes.
    """
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    from sglang_omni.engines.sglang import scheduler as module
    from sglang_omni.engines.sglang.sampler import OmniSampler

    rows = len(asked)
    count = rows * (extends or 1)
    mode = ForwardMode.EXTEND if extends else ForwardMode.DECODE
    device = torch.device(DEVICE)
    with torch.device(device):
        batch = ForwardBatch(
            forward_mode=mode,
            batch_size=rows,
            input_ids=torch.zeros(count, dtype=torch.long),
            req_pool_indices=torch.zeros(rows, dtype=torch.long),
            seq_lens=torch.zeros(rows, dtype=torch.long),
            out_cache_loc=torch.zeros(count, dtype=torch.long),
            seq_lens_sum=rows * 101,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            positions=torch.zeros(count, dtype=torch.long),
            extend_seq_lens=torch.zeros(rows, dtype=torch.int32) if extends else None,
        )
        pool = SimpleNamespace(req_to_token=torch.zeros(rows + 1, 4096, dtype=torch.int32))
    sampler = OmniSampler([7, 8])
    scheduler = module.HoldingScheduler.__new__(module.HoldingScheduler)
    # Thinker and talker need a step's tokens before the next one.
    scheduler._captures_all = scheduler.enable_overlap = False
    scheduler.model_config = SimpleNamespace(vocab_size=model._config.vocab_size)
    scheduler.sampler, scheduler._decoder, scheduler._strategy = sampler, model, strategy
    scheduler.outbox, scheduler.req_to_token_pool = module.StateSink(), pool
    scheduled = SimpleNamespace(
        reqs=[
            SimpleNamespace(
                request=request,
                prefix_len=0,
                extend_len=extends,
                kv=SimpleNamespace(req_pool_idx=row + 1),
            )
            for row, request in enumerate(asked)
        ],
        forward_mode=mode,
        chunked_req=None,
        return_logprob=False,
        seq_lens_cpu=torch.full((rows,), 101),
    )

    def run_batch(self: Any, planned: Any) -> Any:
        logits = model.forward(batch.input_ids, batch.positions, batch)
        return SimpleNamespace(next_token_ids=sampler.forward(logits, None, return_logprob=False))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Scheduler, "run_batch", run_batch)
        with Step():
            # What is made and sent once.
            scheduler.run_batch(scheduled)
        with Step(value=101) as counted:
            scheduler.run_batch(scheduled)
    return counted


GREEDY = RequestSampling(temperature=0.0)
DRAWN = RequestSampling(temperature=0.9, top_k=50, repetition_penalty=1.05)
