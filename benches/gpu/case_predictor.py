"""Qwen3-Omni's code predictor at its published size: a frame kernel by kernel, and as one CUDA graph."""

from __future__ import annotations

import torch
from bench import Bench
from random_weights import RandomCheckpoint
from torch import Tensor

from sglang_omni.model_runner.code_predictor import CodePredictor, PredictorConfig
from sglang_omni.models.qwen3_omni.components.code_predictor import FramePredictor

_CONFIG = PredictorConfig(
    vocab_size=2048,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=5,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    num_code_groups=16,
    qk_norm=True,
)
_FIRST_CODES = 3072


def run(bench: Bench) -> None:
    for dtype in (torch.float32, torch.bfloat16) if bench.on_gpu else (torch.float32,):
        torch.manual_seed(0)
        plain, graphed = _predictor(bench, dtype), None
        if bench.on_gpu:
            torch.manual_seed(0)
            graphed = _predictor(bench, dtype)
            graphed.record_graphs(16, cuda_graph=True)
        name = str(dtype).removeprefix("torch.")
        for count in (1, 8, 16) if bench.on_gpu else (1,):
            for drawn in (False, True):
                _measure(bench, plain, graphed, name, count, drawn=drawn)


def _predictor(bench: Bench, dtype: torch.dtype) -> FramePredictor:
    weights = RandomCheckpoint("random", dtype, device=bench.device)
    size, groups = (_CONFIG.vocab_size, _CONFIG.hidden_size), _CONFIG.num_code_groups
    embeddings = [weights.take("embed", size) for _ in range(groups - 2)]
    heads = [weights.take("head", size) for _ in range(groups - 1)]
    predictor = CodePredictor.from_checkpoint(_CONFIG, weights, "model", embeddings, heads)
    return FramePredictor(predictor, weights.take("first", (_FIRST_CODES, _CONFIG.hidden_size)))


def _measure(
    bench: Bench,
    plain: FramePredictor,
    graphed: FramePredictor | None,
    dtype: str,
    count: int,
    *,
    drawn: bool,
) -> None:
    torch.manual_seed(count)
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    hidden = torch.randn(count, _CONFIG.hidden_size).to(bench.device, kind)
    first = torch.randint(_FIRST_CODES, (count, 1)).float()
    given = torch.cat((first, torch.rand(count, _CONFIG.num_code_groups - 1)), dim=1) if drawn else first
    what = f"{count} frames, {'drawn' if drawn else 'greedy'}, {dtype}"

    def codes(predictor: FramePredictor) -> Tensor:
        with torch.inference_mode():
            return predictor(hidden, given)

    eager = bench.milliseconds(lambda: codes(plain))
    if graphed is None:
        bench.row("predictor", what, eager, "ms")
        return
    bench.row("predictor", what, bench.milliseconds(lambda: codes(graphed)), "ms", f"eager: {eager:.3g} ms")
    bench.check("predictor", f"graph equals eager, {what}", torch.equal(codes(plain), codes(graphed)))
