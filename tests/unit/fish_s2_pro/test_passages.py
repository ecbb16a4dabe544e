"""What a passage of a long text goes on from: its prompt, its random numbers, and what is left of limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fish_s2_oracle import END, GROUPS, START, FishS2

from sglang_omni.engines import EngineRequest
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.dual_ar import DualAR
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import OmniRequest, StagePayload


@pytest.fixture(scope="module")
def dual_ar(tmp_path_factory: pytest.TempPathFactory) -> DualAR:
    path = FishS2.make(tmp_path_factory.mktemp("passages"), seed=0).path
    tokenizer = TextTokenizer(load_tokenizer(path))
    # Of the cache, a quarter: 20 frames.
    return DualAR(FishS2Checkpoint.from_dir(path), tokenizer, max_passage_frames=30, pool_tokens=80)


def payload(passages: int, *, voice_frames: int = 0, **params: Any) -> StagePayload:
    data = SpeechParts(parts=[[10 + i] for i in range(passages)], opening=[])
    if voice_frames:
        codes = torch.zeros(voice_frames, GROUPS, dtype=torch.int64)
        data |= {"reference": [9], "reference_codes": codes}
    return StagePayload("r", OmniRequest(None, params, {"task": "speech"}), data)


def speak(request: EngineRequest, codes: list[int]) -> None:
    """Has the engine's request say frames of these first codes, and end."""
    state: Any = request.state
    for code in codes:
        state.frames.append(torch.full((GROUPS,), code))
        request.output_token_ids.append(START + code)
    request.output_token_ids.append(END)
    request.finish("stop")


def heard(request: EngineRequest) -> list[int]:
    """The first codes of all frames in a prompt."""
    state: Any = request.state
    rows = [state.row(place) for place in range(len(request.prompt_token_ids))]
    return [int(row[0]) for row in rows if isinstance(row, torch.Tensor)]


def test_the_first_and_the_last_passage_are_heard_without_a_voice(dual_ar: DualAR) -> None:
    asked = payload(5)
    request = dual_ar.build_request(asked)
    assert heard(request) == []
    # Seventeen frames and four are more than a quarter of the cache: the last passage is left out.
    expected = [[1] * 4, [1] * 4 + [2] * 5, [1] * 4, [1] * 4 + [4] * 5]
    for number, count in enumerate((4, 5, 17, 5)):
        speak(request, [number + 1] * count)
        following = dual_ar.follow_up(asked, request)
        assert following is not None
        # What is drawn goes on: equal generators would draw the same again.
        assert following.generator is request.generator
        assert heard(following) == expected[number]
        request = following
    speak(request, [5])
    assert dual_ar.follow_up(asked, request) is None
    assert dual_ar.result(asked, request).data["usage"]["completion_tokens"] == 4 + 5 + 17 + 5 + 1 + 5


def test_a_voice_is_heard_each_time_with_the_last_passage(dual_ar: DualAR) -> None:
    asked = payload(3, voice_frames=3)
    request = dual_ar.build_request(asked)
    for number in (1, 2):
        assert heard(request)[:3] == [0, 0, 0]
        speak(request, [number] * 2)
        following = dual_ar.follow_up(asked, request)
        assert following is not None
        assert heard(following) == [0, 0, 0, number, number]
        request = following


def test_a_silent_passage_is_not_gone_on_from(dual_ar: DualAR) -> None:
    asked = payload(2)
    request = dual_ar.build_request(asked)
    speak(request, [])
    following = dual_ar.follow_up(asked, request)
    assert following is not None
    assert heard(following) == []


def test_a_limit_is_shared_by_all_passages(dual_ar: DualAR) -> None:
    asked = payload(3, max_new_tokens=9)
    request = dual_ar.build_request(asked)
    speak(request, [1] * 5)
    following = dual_ar.follow_up(asked, request)
    assert following is not None
    assert following.sampling.max_new_tokens == 3
    speak(following, [2, 2])
    assert dual_ar.follow_up(asked, following) is None
    assert dual_ar.result(asked, following).data["finish_reason"] == "length"
    assert dual_ar.build_request(payload(1)).sampling.max_new_tokens == 30


def test_a_code_among_the_last_ten_of_a_passage_is_drawn_again(dual_ar: DualAR) -> None:
    asked = payload(2)
    request = dual_ar.build_request(asked)
    speak(request, list(range(14)))
    row = request.sampling_row(200)
    assert row.redraw is not None
    # The end, which is one of them, is drawn no second time: the passage is over.
    assert row.redraw.recent == (*range(START + 5, START + 14), END)
    assert (row.redraw.params.temperature, row.redraw.params.top_p, row.redraw.params.top_k) == (1.0, 0.9, 30)
    following = dual_ar.follow_up(asked, request)
    assert following is not None
    nothing = following.sampling_row(200)
    assert nothing.redraw is not None
    assert nothing.redraw.recent == ()
