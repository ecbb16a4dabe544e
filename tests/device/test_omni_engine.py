"""What a step of OmniEngine costs on a GPU, with the shapes of published models and fewer layers.

Qwen3-8B has 36 layers and Qwen3-30B-A3B (the thinker's decoder) 48: here they have 3, so that launches are
counted a layer, as the difference between 3 layers and 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_cuda import Step, needs_paged_attention
from graph_recorders import CountingRecorder
from omni_steps import AMPERE, DENSE, EXPERTS, add, engine_on, step
from published import flash_attention

from sglang_omni.engines.build import PAGE_SIZE
from sglang_omni.engines.options import Dtype
from sglang_omni.model_runner import attention
from sglang_omni.model_runner.config import DecoderConfig


def decode_steps(
    monkeypatch: pytest.MonkeyPatch, config: DecoderConfig, *lengths: int, **how: Any
) -> tuple[Step, int]:
    """What a step costs in which prompts of ``lengths`` have their second token, and its launches a layer."""
    counted = []
    for layers in (config.num_hidden_layers - 1, config.num_hidden_layers):
        with engine_on(monkeypatch, replace(config, num_hidden_layers=layers), **how) as engine:
            add(engine, *lengths)
            step(engine)
            counted.append(step(engine))
    return counted[1], counted[1].num_launches - counted[0].num_launches


@pytest.mark.parametrize(
    ("config", "how", "launches"),
    [
        pytest.param(DENSE, {}, 18, marks=needs_paged_attention),
        pytest.param(EXPERTS, {}, 32, marks=needs_paged_attention),
        pytest.param(EXPERTS, {"capability": AMPERE}, 29, marks=needs_paged_attention),
        # Keys and values are gathered.
        (DENSE, {"dtype": "float32"}, 36),
    ],
    ids=["dense", "experts", "experts without grouped products", "float32"],
)
def test_a_token_of_four_sequences(
    monkeypatch: pytest.MonkeyPatch, config: DecoderConfig, how: dict[str, Any], launches: int
) -> None:
    counted, a_layer = decode_steps(monkeypatch, config, 9, 30, 300, 301, **how)
    assert counted.host_reads == 1
    assert counted.uploads == 1
    assert a_layer <= launches


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=needs_paged_attention), "float32"])
@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_prompt_beside_running_sequences(
    monkeypatch: pytest.MonkeyPatch, config: DecoderConfig, dtype: Dtype
) -> None:
    with engine_on(monkeypatch, config, dtype) as engine:
        add(engine, 9, 300)
        first = step(engine)
        add(engine, 200)
        beside = step(engine)
    for counted in (first, beside):
        assert counted.host_reads == 1
        assert counted.uploads == 1
    if dtype == "bfloat16":
        assert beside.launches["_varlen_attn"] == config.num_hidden_layers


@needs_paged_attention
@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_replayed_token(monkeypatch: pytest.MonkeyPatch, config: DecoderConfig) -> None:
    recorder = CountingRecorder()
    with engine_on(monkeypatch, config, recorder=recorder) as engine:
        add(engine, 9, 30, 300)
        step(engine)
        assert not recorder.replayed
        counted = step(engine)
        again = step(engine)
    assert len(recorder.replayed) == 2
    assert (counted.host_reads, counted.uploads) == (1, 1)
    # However many layers: embeddings, copies into and out of the graph, the head and the choice.
    assert again.num_launches <= 7
    # Pages are written when they are new, not in every step.
    assert counted.launches - again.launches == {"_to_copy": 1, "index_copy_": 1}


@needs_paged_attention
def test_as_many_sequences_as_run_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = CountingRecorder()
    with engine_on(monkeypatch, DENSE, recorder=recorder, max_running_requests=256) as engine:
        add(engine, *[4] * 130)
        step(engine)
        assert step(engine).host_reads == 1
    assert len(recorder.replayed) == 1


@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_without_attention_over_pages_keys_are_gathered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, config: DecoderConfig
) -> None:
    """As with torch before 2.12: nothing is captured, one line says why, and a step waits once as always."""
    monkeypatch.setattr(attention, "has_paged_attention", lambda: False)
    recorder = CountingRecorder()
    with engine_on(monkeypatch, config, recorder=recorder) as engine, flash_attention():
        add(engine, 9, 300)
        prompts = step(engine)
        add(engine, 200)
        beside = step(engine)
        decode = step(engine)
    assert engine.scheduler.resources.page_size == PAGE_SIZE
    assert recorder.replayed == []
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "Attention gathers keys and values for each layer, and no CUDA graph replays a step: "
        f"torch {torch.__version__} has no attention over a paged cache, as from 2.12 on"
    ]
    for counted in (prompts, beside, decode):
        assert (counted.host_reads, counted.uploads) == (1, 1)
