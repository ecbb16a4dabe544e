"""The delay pattern: frames to rows and back, what it demands of a row, and what is drawn again."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.frames.delay import DelayedRows, DelayPattern, Repetition
from sglang_omni.models.frames.delayed import DelayedStrategy
from sglang_omni.models.frames.state import FramePrompt, FrameState

B, E = 8, 9
PATTERN = DelayPattern(3, begin=B, end=E)


def test_frames_become_rows_and_rows_frames() -> None:
    frames = torch.tensor([[0, 1, 2], [3, 4, 5]])
    rows = PATTERN.delayed(frames)
    assert rows.tolist() == [[B, B, B], [0, B, B], [3, 1, B], [E, 4, 2], [E, E, 5], [E, E, E]]
    speech = DelayedRows(PATTERN, [])
    counts = []
    for row in rows.tolist():
        over = speech.add(row)
        counts.append(len(speech.frames(0)))
    # A frame is whole once its last group is there; the last row is of none.
    assert counts == [0, 0, 0, 1, 2, 2]
    assert over
    assert speech.frames(0).tolist() == frames.tolist()
    assert speech.frames(1).tolist() == [[3, 4, 5]]
    assert speech.frames(2).shape == (0, 3)


def test_a_group_that_ends_early_has_the_last_code() -> None:
    speech = DelayedRows(PATTERN, [])
    for row in ([B, B, B], [0, B, B], [E, 1, B], [E, 4, 2], [E, E, 5]):
        assert not speech.add(row)
    assert speech.frames(0).tolist() == [[0, 1, 2], [B - 1, 4, 5]]


def test_rows_begin_and_end_group_by_group() -> None:
    speech = DelayedRows(PATTERN, [])
    given = [[1, 2, 3], [1, 2, 3], [E, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]
    rows = []
    for chosen in given:
        rows.append(speech.settle(chosen))
        over = speech.add(rows[-1])
    # The first group's end is chosen in the third row. After it, the pattern demands one more each row.
    assert rows == [[B, B, B], [1, B, B], [E, 2, B], [E, 2, 3], [E, E, 3], [E, E, E]]
    assert over


def test_a_code_that_comes_too_often_is_to_be_drawn_again() -> None:
    speech = DelayedRows(PATTERN._replace(repetition=Repetition(window=3, most=2)), [torch.tensor([7, 7, E])])
    for row in ([B, B, B], [7, B, B], [1, 5, B], [1, 5, 3]):
        speech.add(row)
    # Of the last three rows; neither beginnings nor ends repeat.
    assert speech.repeated([1, 5, 3]) == [0, 1]
    assert speech.repeated([7, 6, B]) == []
    speech.add([2, E, 3])
    assert speech.repeated([1, E, 3]) == [0, 2]
    # The rows before a speech count.
    begun = DelayedRows(
        PATTERN._replace(repetition=Repetition(window=3, most=2)), [torch.tensor([7, 7, E])] * 9
    )
    assert begun.repeated([7, 6, E]) == [0]
    assert DelayedRows(PATTERN, [torch.tensor([7, 7, E])] * 9).repeated([7, 7, 7]) == []


class _Likes:
    """A decoder whose heads draw one code whenever they are asked."""

    device, dtype = torch.device("cpu"), torch.float32
    num_code_groups, hidden_size = 3, 1
    end_code = end_token = None

    def __init__(self, code: int) -> None:
        self._logits = torch.full((3, E + 1), -1e9)
        self._logits[:, code] = 0.0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits


def test_only_what_is_drawn_is_drawn_again() -> None:
    pattern = PATTERN._replace(repetition=Repetition(window=4, most=1))
    strategy = DelayedStrategy(_Likes(6))  # type: ignore[arg-type]
    states = [FrameState(FramePrompt([]), RequestSampling(temperature=each), pattern) for each in (1.0, 0.0)]
    outbox = SimpleNamespace(put=lambda span, frame: span.state.frames.append(frame))
    spans = [SequenceSpan(state, 0, 1, index, True) for index, state in enumerate(states)]
    for state in states:
        state.generator = random.Random(0)
    for _ in range(3):
        codes = torch.tensor([[1, 2, 3]] * 2)
        strategy.deliver(spans, [1, 1], torch.zeros(2, 1), codes, outbox)  # type: ignore[arg-type]
    drawn, greedy = ([frame.tolist() for frame in state.frames] for state in states)
    assert drawn == [[B, B, B], [1, B, B], [6, 2, B]]
    assert greedy == [[B, B, B], [1, B, B], [1, 2, B]]
