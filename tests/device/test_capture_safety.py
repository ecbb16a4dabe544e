"""Each step that becomes a CUDA graph has nothing in it that a capture fails at, in its published shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_rules import CapturingRecorder, NotInAGraphError, capture
from fake_cuda import DEVICE, fake_gpu, needs_paged_attention, needs_sglang
from omni_steps import AMPERE, DENSE, EXPERTS, HOPPER, engine_on
from published import PREDICTOR, VOCAB, code2wav, flash_attention, on_gpu, predictor, talker_strategy
from sglang_steps import CAPTURE_LAYER, GREEDY, TALKER_CONFIG, THINKER_CONFIG, RowsOnTheGpu, decoder_of
from sglang_steps import requests as sglang_requests
from sglang_steps import step as sglang_step
from torch import Tensor

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.codecs import streamed
from sglang_omni.models.qwen3_omni.components import code_predictor
from sglang_omni.models.qwen3_omni.components.code_predictor import FramePredictor

rows = pytest.mark.parametrize("rows", [1, 16])


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> CapturingRecorder:
    made = CapturingRecorder()
    for module in (code_predictor, streamed):
        monkeypatch.setattr(module, "recorder_for", lambda *_, **__: made)
    return made


@needs_paged_attention
@pytest.mark.parametrize(
    ("config", "capability"),
    [(DENSE, HOPPER), (EXPERTS, HOPPER), (EXPERTS, AMPERE)],
    ids=["dense", "experts", "experts without grouped products"],
)
def test_omni_engines_decode_step(
    monkeypatch: pytest.MonkeyPatch,
    recorder: CapturingRecorder,
    config: DecoderConfig,
    capability: tuple[int, int],
) -> None:
    with engine_on(monkeypatch, config, recorder=recorder, capability=capability, max_running_requests=256):
        assert recorder.recorded == 9


def test_the_code_predictors_frame(recorder: CapturingRecorder) -> None:
    with fake_gpu(), flash_attention():
        frames = FramePredictor(predictor(), on_gpu(VOCAB, PREDICTOR.hidden_size))
        frames.record_graphs(4, cuda_graph=True)
    # Greedy and drawn, for one, two and four frames.
    assert recorder.recorded == 6


def test_the_talkers_frame(recorder: CapturingRecorder) -> None:
    with fake_gpu(), flash_attention():
        talker_strategy().record_graphs(1)
    assert recorder.recorded == 2


def test_code2wavs_chunks(monkeypatch: pytest.MonkeyPatch, recorder: CapturingRecorder) -> None:
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())
    with fake_gpu(), flash_attention():
        # A first chunk, and further ones.
        code2wav().record_graphs((25, 50), 100, cuda_graph=True)
    assert recorder.recorded == 5


class Captured:
    """A decoder of SGLang's layers, whose forward pass is captured as SGLang's runner of graphs does."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.captures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *args: Any) -> Any:
        with capture():
            out = self._model.forward(*args)
        self.captures += 1
        return out


@needs_sglang
@rows
@pytest.mark.parametrize("whose", ["thinker", "talker"])
def test_sglangs_decode_step(sglang: None, whose: str, rows: int) -> None:
    strategy = RowsOnTheGpu() if whose == "talker" else None
    config = TALKER_CONFIG if strategy else THINKER_CONFIG
    how = {"strategy": strategy} if strategy else {"capture_layer": CAPTURE_LAYER}
    with fake_gpu():
        model = Captured(decoder_of(config, rows=rows, **how))
        sglang_step(model, sglang_requests(GREEDY, rows=rows), strategy=strategy)
    assert model.captures == 2


# What the tests above rest on.


def item(given: Tensor) -> object:
    return given[0, 0].item()


def branch(given: Tensor) -> object:
    return 1 if given.sum() > 0 else 2


def mask(given: Tensor) -> object:
    return given[given > 0]


def write_by_mask(given: Tensor) -> object:
    given[given > 0] = given[0, :1]
    return given


def upload(given: Tensor) -> object:
    return torch.zeros(3).to(DEVICE, non_blocking=True)


def upload_numbers(given: Tensor) -> object:
    return torch.tensor([1, 2, 3])


ILLEGAL: dict[str, Callable[[Tensor], object]] = {
    "item": item,
    "a branch": branch,
    "tolist": lambda given: given.tolist(),
    "cpu": lambda given: given.cpu(),
    "nonzero": lambda given: given.nonzero(),
    "where": torch.where,
    "a mask": mask,
    "masked_select": lambda given: given.masked_select(given > 0),
    "written by a mask": write_by_mask,
    "unique": lambda given: given.unique(),
    "repeated": lambda given: given.repeat_interleave(given[0].long(), dim=1),
    "equal": lambda given: torch.equal(given, given + 1),
    "an upload": upload,
    "copied in": lambda given: given.copy_(torch.zeros(2, 4)),
    "numbers": upload_numbers,
    "indices of the host": lambda given: given[torch.zeros(3, dtype=torch.long)],
    "synchronize": lambda given: torch.cuda.synchronize(),
    "pinned": lambda given: torch.zeros(3).pin_memory(),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_a_capture_fails_at_is_refused(name: str) -> None:
    with fake_gpu():
        given = torch.zeros(2, 4, device=DEVICE)
        with capture():
            (given + 1).view(8)[torch.zeros(3, dtype=torch.long, device=DEVICE)].sum()
            with pytest.raises(NotInAGraphError):
                ILLEGAL[name](given)
