"""What the host does for one decode step, counted and not timed: calls, torch's operations, bytes it copies.

The figures grow where a step does one thing more for each row: one call more of 64 rows is over the budget.
They were counted on Python 3.11; later ones call less.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from fake_cuda import Step, fake_gpu, needs_paged_attention, needs_sglang
from graph_recorders import CountingRecorder
from omni_steps import DENSE, EXPERTS, add, engine_on, step
from sglang_steps import (
    CAPTURE_LAYER,
    DRAWN,
    GREEDY,
    TALKER_CONFIG,
    THINKER_CONFIG,
    RowsOnTheGpu,
    decoder_of,
    requests,
)
from sglang_steps import step as sglang_step

from sglang_omni.engines import RequestSampling
from sglang_omni.model_runner.config import DecoderConfig


class Budget(NamedTuple):
    calls: int
    operations: int
    uploaded_bytes: int

    def holds(self, counted: Step) -> None:
        assert self == Budget(
            max(self.calls, counted.calls),
            max(self.operations, counted.operations),
            max(self.uploaded_bytes, counted.uploaded_bytes),
        )


# Rows -> the whole step of OmniEngine, planning, sampling and results too.
OMNI = {1: Budget(100, 72, 28), 16: Budget(450, 72, 448), 64: Budget(1_580, 72, 1_792)}


@needs_paged_attention
@pytest.mark.parametrize("rows", OMNI)
@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_omni_engines_step(monkeypatch: pytest.MonkeyPatch, config: DecoderConfig, rows: int) -> None:
    options = {"max_running_requests": 64, "max_total_tokens": 65_536}
    with engine_on(monkeypatch, config, recorder=CountingRecorder(), **options) as engine:
        add(engine, *[9] * rows)
        # The prompts, and what is made and sent once.
        step(engine)
        step(engine)
        OMNI[rows].holds(step(engine))


# What is ours of a step of SGLang's scheduler, whose planning is not here; the model is launched eagerly.
SGLANG = {
    ("thinker", 1): Budget(380, 1_522, 0),
    ("thinker", 16): Budget(425, 1_522, 0),
    ("thinker", 64): Budget(580, 1_522, 0),
    ("thinker, drawn", 64): Budget(725, 1_591, 512),
    ("talker", 1): Budget(205, 937, 0),
    ("talker", 16): Budget(250, 937, 0),
    ("talker", 64): Budget(405, 937, 0),
}


@needs_sglang
@pytest.mark.parametrize(("whose", "rows"), SGLANG)
def test_our_part_of_sglangs_step(sglang: None, whose: str, rows: int) -> None:
    params: RequestSampling = DRAWN if "drawn" in whose else GREEDY
    strategy = RowsOnTheGpu() if whose == "talker" else None
    with fake_gpu():
        model = (
            decoder_of(TALKER_CONFIG, rows=rows, strategy=strategy)
            if strategy
            else decoder_of(THINKER_CONFIG, rows=rows, capture_layer=CAPTURE_LAYER)
        )
        SGLANG[whose, rows].holds(sglang_step(model, requests(params, rows=rows), strategy=strategy))
