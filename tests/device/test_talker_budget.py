"""What the talker's steps cost on a GPU beside its decoder, with the published sizes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from graph_recorders import CountingRecorder
from published import EOS, PREDICTOR, flash_attention, on_gpu, talker_strategy

from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackBuffers, FeedbackWorker, StateSink
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.qwen3_omni.components import code_predictor
from sglang_omni.models.qwen3_omni.components.talker_prompt import TalkerPrompt
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState

ROWS, REQUESTS = 20, 4


class Model:
    """A decoder as its strategy sees it."""

    def __init__(self) -> None:
        self.feedback: Any = FeedbackBuffers()

    def computed(self) -> None:
        rows = self.feedback.take_input_rows()
        assert rows.device == torch.device(DEVICE)
        self.feedback.output_rows = on_gpu(REQUESTS, PREDICTOR.hidden_size)


def state(prompt: TalkerPrompt, *, drawn: bool) -> Qwen3TalkerState:
    speaker = Qwen3TalkerState(prompt, max_new_tokens=50)
    speaker.feed([11, 12, 13, 14])
    speaker.generator = random.Random(1) if drawn else None
    return speaker


@pytest.mark.parametrize("drawn", [False, True])
def test_the_host_waits_for_nothing(*, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, model = CountingRecorder(), Model()
    monkeypatch.setattr(code_predictor, "recorder_for", lambda *_, **__: recorder)
    # Its tensors are on the host, and are read there.
    none = torch.zeros(0, dtype=torch.long)
    prompt = TalkerPrompt(torch.arange(ROWS), none, none, torch.arange(6), [])
    with fake_gpu(), flash_attention():
        strategy = talker_strategy()
        strategy.record_graphs(16)
        states = [state(prompt, drawn=drawn) for _ in range(REQUESTS)]
        spans = [SequenceSpan(each, 0, ROWS, ROWS * i, True) for i, each in enumerate(states)]

        with Step() as step:
            strategy.prefill_forward(FeedbackWorker(model), SimpleNamespace(), spans)
        # The text of each request, from a table on the host, and its ids of codes.
        assert (step.host_reads, step.uploads) == (0, 2 * REQUESTS)
        model.computed()

        for frame in range(3):
            with Step() as step:
                strategy.extract_output(model, FeedbackBatch(spans, [1, 2, 3, 4]), spans, StateSink())
            # First codes and random numbers in one copy; the talker's rows, one replay, and the frames, which
            # leave together.
            assert (step.host_reads, step.uploads, step.downloads, step.num_launches) == (0, 1, 1, 2)
            assert len(recorder.replayed) == frame + 1

            spans = [SequenceSpan(each, ROWS + frame, 1, i, True) for i, each in enumerate(states)]
            with Step() as step:
                strategy.write_buffers(model, FeedbackBatch(spans), spans)
            # Before the first frame, the text known by then is projected.
            assert (step.host_reads, step.uploads) == (0, REQUESTS if frame == 0 else 0)
            assert frame == 0 or step.num_launches <= 6
            model.computed()
        assert all(code.device == torch.device(DEVICE) for each in states for code in each.frames)

        # One of them ends: its row is left out.
        with Step() as step:
            strategy.extract_output(model, FeedbackBatch(spans, [1, EOS, 3, 4]), spans, StateSink())
        assert (step.host_reads, step.uploads, step.downloads, step.num_launches) == (0, 2, 1, 3)
        assert [len(each.frames) for each in states] == [4, 3, 4, 4]
