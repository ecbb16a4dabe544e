"""What one step of the decoders made of SGLang's layers costs a GPU, in their published sizes."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import DEVICE, fake_gpu, needs_sglang
from sglang_steps import (
    CAPTURE_LAYER,
    DRAWN,
    GREEDY,
    ROWS,
    TALKER_CONFIG,
    THINKER_CONFIG,
    RowsOnTheGpu,
    decoder_of,
    requests,
    step,
)

from sglang_omni.engines import RequestSampling
from sglang_omni.model_runner import media
from sglang_omni.model_runner.media import ThinkerState

pytestmark = needs_sglang


# Without a graph. Of a layer: 4 norms, the copies for two of them, 3 projections, rope, attention, the choice
# of experts and the experts; 7 more for a shared one.


@pytest.mark.parametrize(("params", "uploads", "launches"), [(GREEDY, 0, 633), (DRAWN, 1, 684)])
def test_thinker_decodes(sglang: None, params: RequestSampling, uploads: int, launches: int) -> None:
    with fake_gpu():
        counted = step(decoder_of(THINKER_CONFIG, capture_layer=CAPTURE_LAYER), requests(params))

    assert counted.host_reads == 1
    assert counted.uploads == uploads
    assert counted.num_launches <= launches, counted.launches


@pytest.mark.parametrize(("params", "uploads", "launches"), [(GREEDY, 0, 411), (DRAWN, 1, 462)])
def test_talker_decodes(sglang: None, params: RequestSampling, uploads: int, launches: int) -> None:
    strategy = RowsOnTheGpu()
    with fake_gpu():
        counted = step(decoder_of(TALKER_CONFIG, strategy=strategy), requests(params), strategy=strategy)

    assert counted.host_reads == 1
    assert counted.uploads == uploads
    assert counted.num_launches <= launches, counted.launches


def test_thinker_reads_a_prompt(sglang: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fake tensor's numbers are unknown.
    monkeypatch.setattr(media, "_inside", lambda positions, span: (0, len(positions)))
    rows = torch.arange(4, 36)

    def state() -> ThinkerState:
        embeds = torch.empty(32, THINKER_CONFIG.hidden_size)
        return ThinkerState(rows, embeds, rows, (embeds,) * 3, wants_hidden=True)

    asked = requests(GREEDY, state)
    with fake_gpu():
        on_gpu = torch.empty(32, THINKER_CONFIG.hidden_size, dtype=torch.bfloat16, device=DEVICE)
        states = [request.state for request in asked if isinstance(request.state, ThinkerState)]
        for each in states:
            each.media_embeds, each.deepstack = on_gpu, (on_gpu,) * 3
        model = decoder_of(THINKER_CONFIG, capture_layer=CAPTURE_LAYER)
        counted = step(model, asked, extends=64)

    assert counted.host_reads == 1
    # Positions, media rows, visual rows.
    assert counted.uploads == 3
    assert len(states) == ROWS
    for each in states:
        assert each.media_hidden is not None
        assert each.media_hidden.shape == on_gpu.shape
        assert each.media_hidden.device == torch.device(DEVICE)


def test_talker_reads_a_prompt(sglang: None) -> None:
    strategy = RowsOnTheGpu()
    with fake_gpu():
        model = decoder_of(TALKER_CONFIG, strategy=strategy)
        counted = step(model, requests(DRAWN), extends=64, strategy=strategy)

    assert counted.host_reads == 1
    assert counted.uploads == 2
