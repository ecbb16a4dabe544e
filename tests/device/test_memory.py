"""The most bytes of a step's tensors at the same time, against what ``models.decoder.memory`` counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Peak, Step, fake_gpu, needs_paged_attention
from omni_steps import DENSE, EXPERTS, engine_on
from published import flash_attention

from sglang_omni.engines.options import Dtype
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner import attention
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.decoder import memory
from sglang_omni.models.decoder.memory import decoder_demand

LLAMA = replace(DENSE, model_type="llama", vocab_size=128_256, intermediate_size=14_336, qk_norm=False)
STEP, ROWS = 8192, 64


def workspace(config: DecoderConfig, step: int, dtype: Dtype = "bfloat16") -> int:
    """What is counted for a step and its graphs."""
    args = {"chunked_prefill_size": step, "max_running_requests": ROWS, "dtype": dtype}
    (setting,) = decoder_demand(config, args, 0).settings
    return setting.workspace


def activations(config: DecoderConfig, step: int) -> int:
    """What is counted for a step beside graphs."""
    return workspace(config, step) - ROWS * memory._GRAPHS_PER_REQUEST


@needs_paged_attention
@pytest.mark.parametrize("config", [LLAMA, DENSE, EXPERTS], ids=["llama", "dense", "experts"])
def test_a_step_of_prompts(monkeypatch: pytest.MonkeyPatch, config: DecoderConfig) -> None:
    with engine_on(monkeypatch, config, chunked_prefill_size=STEP) as engine:
        for number, length in enumerate((3000, 2500, 3500)):
            engine.add(EngineRequest(str(number), [7] * length, RequestSampling(temperature=0.0)))
        with Step(value=9), Peak() as step:
            engine.step()
    # The allocator cannot use all of what is free: it keeps blocks of other sizes.
    counted = activations(config, STEP)
    assert 1.25 * step.peak <= counted <= 2 * step.peak, (step.peak, counted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("config", [LLAMA, EXPERTS], ids=["llama", "experts"])
def test_steps_that_gather_keys(monkeypatch: pytest.MonkeyPatch, config: DecoderConfig, dtype: Dtype) -> None:
    """They have what is counted for graphs and for the buffers of kernels, which they lack."""
    monkeypatch.setattr(attention, "has_paged_attention", lambda: False)
    options = {"max_total_tokens": 65_536, "max_running_requests": ROWS, "chunked_prefill_size": STEP}
    peaks = []
    with engine_on(monkeypatch, replace(config, num_hidden_layers=1), dtype, **options) as engine:
        greedy = RequestSampling(temperature=0.0, max_new_tokens=8)
        engine.add(EngineRequest("long", [7] * 20_000, greedy))
        # Its later steps look back; the other sequences share its pages, and then all write.
        for number in range(5):
            if number == 3:
                for other in range(ROWS - 1):
                    engine.add(EngineRequest(str(other), [7] * 20_000, greedy))
            with flash_attention(), Step(value=9), Peak() as step:
                engine.step()
            peaks.append(step.peak)
        assert len(engine.stepped) == ROWS
    counted = workspace(config, STEP, dtype) + memory._LIBRARIES
    assert max(peaks) <= counted, (peaks, counted)


@pytest.mark.parametrize("window", [None, 4096])
def test_a_mask_is_never_there_as_a_whole(window: int | None) -> None:
    rows, length = STEP, 131_072
    with fake_gpu(), flash_attention():
        queries = torch.empty(rows, 32, 128, dtype=torch.bfloat16, device=DEVICE)
        keys = torch.empty(1, 8, length, 128, dtype=torch.bfloat16, device=DEVICE)
        with Peak() as step:
            attention.attend_in_pieces(queries, keys, keys, window)
    # Results, once more when they are joined and ordered; the mask and what it is made of.
    assert step.peak <= 3 * queries.nbytes + 5 * attention.MASK_SIZE


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.9}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.8}, {"min_p": 0.1}]
)
def test_a_step_that_draws_tokens(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    with engine_on(monkeypatch, LLAMA, chunked_prefill_size=256, max_running_requests=ROWS) as engine:
        for number in range(ROWS):
            engine.add(EngineRequest(str(number), [7] * 4, RequestSampling.from_params(fields)))
        with Step(value=9):
            engine.step()
        with Step(value=9), Peak() as step:
            engine.step()
    counted = activations(LLAMA, 256)
    assert step.peak <= counted, (step.peak, counted)
