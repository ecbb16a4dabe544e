"""A language model's stage over bare token ids. Its process imports torch."""

from __future__ import annotations

import threading
import time
import zlib
from concurrent.futures import Future
from typing import Any

import torch
from tiny_checkpoints import VOCAB_SIZE

from sglang_omni.engines import DecoderSpec, EngineOptions, EngineRequest, RequestSampling, build_engine
from sglang_omni.engines.options import EngineKind, TensorParallel
from sglang_omni.model_runner.grammar import Grammars
from sglang_omni.model_runner.parallel import TensorParallelGroup
from sglang_omni.models.decoder.token_logprobs import constrained
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def create_engine(
    model_path: str,
    *,
    kind: EngineKind = "omni",
    chunk: int = 32,
    step_seconds: float = 0.0,
    tp_rank: int = 0,
    tp_size: int = 1,
    nccl_port: int | None = None,
    **options: Any,
) -> OmniScheduler:
    """``{"prompt_token_ids": [...]}`` -> generated ids, one per chunk if the request streams.

    Args:
        chunk: Prompt tokens of one step.
        step_seconds: How much longer each step takes, as if the model were larger.
    """
    tp = TensorParallel(tp_rank, tp_size, nccl_port)
    engine = build_engine(
        kind,
        DecoderSpec.from_dir(model_path),
        EngineOptions(chunked_prefill_size=chunk, num_threads=1, tp=tp, **{"page_size": 4, **options}),
    )
    step = engine.step

    def slow_step() -> list[EngineRequest]:
        time.sleep(step_seconds)
        return step()

    if step_seconds:
        engine.step = slow_step
    return OmniScheduler(engine, build, result, stream)


# Tokens are ASCII, and the checkpoint has no end token.
GRAMMARS = Grammars(lambda: [bytes([token]) if token < 128 else b"" for token in range(VOCAB_SIZE)], [])


def create_compared(
    model_path: str, tp_rank: int, tp_size: int, nccl_port: int | None, **options: Any
) -> OmniScheduler:
    """A rank that compares its work with the others' after every step.

    A prompt that begins with 11 makes rank 1 hang in its step until it is killed.
    """
    tp: dict[str, Any] = {"tp_rank": tp_rank, "tp_size": tp_size, "nccl_port": nccl_port}
    scheduler = create_engine(model_path, **tp, **options)
    group = TensorParallelGroup.join(tp_rank, tp_size, nccl_port)
    step = scheduler.engine.step

    def compared_step() -> list[EngineRequest]:
        advanced = step()
        running = [*scheduler.engine.running, *advanced]
        if tp_rank == 1 and any(request.prompt_token_ids[0] == 11 for request in running):
            threading.Event().wait()
        reported = [(r.request_id, r.output_token_ids[-1]) for r in advanced]
        mine = torch.tensor([[zlib.crc32(repr(reported).encode())]])
        if group.all_gather_columns(mine).unique().numel() > 1:
            raise AssertionError(f"rank {tp_rank} computed {reported}, another rank something else")
        return advanced

    scheduler.engine.step = compared_step  # type: ignore[method-assign]
    return scheduler


def build(payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
    sampling = RequestSampling.from_params(payload.request.params)
    prompt = payload.request.inputs["prompt_token_ids"]
    return constrained(
        GRAMMARS,
        sampling,
        lambda grammar: EngineRequest(payload.request_id, prompt, sampling, grammar=grammar),
    )


def stream(
    payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
) -> list[OutgoingMessage] | None:
    if not payload.request.params.get("stream"):
        return None
    text = "".join(f" {token}" for token in new_token_ids)
    return [OutgoingMessage(payload.request_id, "stream", {"modality": "text", "text": text})]


def result(payload: StagePayload, request: EngineRequest) -> StagePayload:
    data = {
        "modality": "text",
        "text": "".join(f" {token}" for token in request.output_token_ids),
        "token_ids": request.output_token_ids,
        "finish_reason": request.finish_reason,
    }
    return StagePayload(payload.request_id, payload.request, data)
