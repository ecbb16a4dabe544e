"""OmniEngine: the tokens of a CPU, and tokens a second beside transformers' ``generate``."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from bench import Bench
from random_weights import QWEN3_06B, QWEN3_30B_8_LAYERS, RandomCheckpoint

from sglang_omni.engines import DecoderSpec, EngineOptions, EngineRequest, RequestSampling, build_engine
from sglang_omni.engines.base import Engine
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

_PROMPT, _TOKENS = 64, 128
_SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 1000}
_serial = itertools.count()


def run(bench: Bench) -> None:
    _equal_to_the_cpu(bench)
    for name, fields in (("Qwen3-0.6B", QWEN3_06B), ("Qwen3-30B-A3B, 8 of 48 layers", QWEN3_30B_8_LAYERS)):
        if not bench.on_gpu:
            name, fields = f"{name}, made small", fields | _SMALL | {"moe_intermediate_size": 32}
        _rates(bench, name, fields)


def _equal_to_the_cpu(bench: Bench) -> None:
    """A tiny Qwen3-Omni's thinker, greedy and drawn, in float32: alone and eight at once."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Qwen3OmniCheckpoint.from_dir(make_tiny_checkpoint(Path(folder), seed=0))
        spec = thinker_decoder(checkpoint, for_speech=False)
        answers = {}
        for device in ("cpu", bench.device):
            options = EngineOptions(dtype="float32", max_total_tokens=4096, device=device)
            engine = build_engine("omni", spec, options)
            answers[device] = [
                _answers(engine, 8, 24, temperature, spec.config.vocab_size) for temperature in (0.0, 1.0)
            ]
    same = answers["cpu"] == answers[bench.device]
    bench.check("engine", "tiny thinker, float32: the tokens of the CPU", same)


def _rates(bench: Bench, name: str, fields: dict[str, Any]) -> None:
    dtype = "bfloat16" if bench.on_gpu else "float32"
    config = DecoderConfig.from_dict(fields, fields["model_type"])

    def opened(path: Any, wanted: torch.dtype | None, component: str, **_: Any) -> RandomCheckpoint:
        return RandomCheckpoint(path, wanted, component, device=bench.device)

    spec = DecoderSpec(Path("random"), config, open_checkpoint=opened)
    options = EngineOptions(
        dtype=dtype, device=bench.device, max_running_requests=64, max_total_tokens=32_768, prefix_cache=False
    )
    engine = build_engine("omni", spec, options)
    tokens = _TOKENS if bench.on_gpu else 16
    beside = _generate_rate(bench, fields, dtype, tokens)
    for count in (1, 8, 32) if bench.on_gpu else (1, 8):
        _answers(engine, count, 8, 0.0, config.vocab_size)
        bench.wait()
        began = time.perf_counter()
        _answers(engine, count, tokens, 0.0, config.vocab_size)
        bench.wait()
        rate = count * tokens / (time.perf_counter() - began)
        bench.row("engine", f"{name}, {dtype}, {count} at once", rate, "tokens/s", beside)


def _answers(
    engine: Engine[EngineRequest], count: int, tokens: int, temperature: float, vocab_size: int
) -> list[list[int]]:
    requests = []
    for index in range(count):
        prompt = [(7 + 13 * index + 3 * position) % min(vocab_size, 500) for position in range(_PROMPT)]
        sampling = RequestSampling(
            temperature=temperature, seed=index, max_new_tokens=tokens, ignore_eos=True
        )
        requests.append(EngineRequest(f"r{next(_serial)}", prompt, sampling))
        engine.add(requests[-1])
    while engine.has_work:
        engine.step()
    return [list(request.output_token_ids) for request in requests]


def _generate_rate(bench: Bench, fields: dict[str, Any], dtype: str, tokens: int) -> str:
    """transformers' tokens a second for one request, of a model of the same size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = fields["model_type"]
    config = AutoConfig.for_model(kind, **{k: v for k, v in fields.items() if k != "model_type"})
    with torch.device(bench.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    prompt = torch.arange(_PROMPT, device=bench.device).unsqueeze(0)
    options = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
    model.generate(prompt, **(options | {"max_new_tokens": 4, "min_new_tokens": 4}))
    bench.wait()
    began = time.perf_counter()
    model.generate(prompt, **options)
    bench.wait()
    return f"generate, 1 request: {tokens / (time.perf_counter() - began):.4g}"
