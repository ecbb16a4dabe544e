"""The most bytes of a step's tensors at the same time, against what ``models.decoder.memory`` counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_cuda import Peak, Step
from omni_steps import DENSE, EXPERTS, engine_on

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.decoder import memory
from sglang_omni.models.decoder.memory import decoder_demand

LLAMA = replace(DENSE, model_type="llama", vocab_size=128_256, intermediate_size=14_336, qk_norm=False)
STEP, ROWS = 8192, 64


def activations(config: DecoderConfig, step: int) -> int:
    """What is counted for a step beside graphs."""
    args = {"chunked_prefill_size": step, "max_running_requests": ROWS}
    (setting,) = decoder_demand(config, args, 0).settings
    return setting.workspace - ROWS * memory._GRAPHS_PER_REQUEST


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
