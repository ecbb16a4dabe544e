"""What a frame of the code predictor costs on a GPU, with the published sizes."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from graph_recorders import CountingRecorder
from published import PREDICTOR, VOCAB, flash_attention, on_gpu, predictor

from sglang_omni.models.qwen3_omni.components import code_predictor
from sglang_omni.models.qwen3_omni.components.code_predictor import FramePredictor

# Kernels of a frame launched one by one, without draws and with them.
# Before norms were one kernel, and sums part of the products: 2,022 and 2,187.
LAUNCHES = {False: 1_138, True: 1_333}


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
def test_a_frame(*, drawn: bool, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = CountingRecorder()
    monkeypatch.setattr(code_predictor, "recorder_for", lambda *_, **__: recorder)
    with fake_gpu(), flash_attention():
        frames = FramePredictor(predictor(), on_gpu(VOCAB, PREDICTOR.hidden_size))
        if graphs:
            frames.record_graphs(16, cuda_graph=True)
        hidden = on_gpu(3, PREDICTOR.hidden_size)
        given = torch.zeros(3, PREDICTOR.num_code_groups if drawn else 1)
        frames(hidden, given)
        recorder.replayed.clear()
        with Step() as step:
            codes = frames(hidden, given)
    print(dict(step.launches))
    assert (codes.shape, codes.dtype, codes.device) == ((3, 16), torch.int64, torch.device(DEVICE))
    assert (step.host_reads, step.uploads) == (0, 1)
    if graphs:
        # The talker's rows are copied in, and the codes out.
        assert len(recorder.replayed) == 1
        assert step.launches == {"copy_": 1, "clone": 1}
    else:
        assert step.num_launches <= LAUNCHES[drawn]
