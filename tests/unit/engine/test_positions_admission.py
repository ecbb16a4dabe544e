"""Admission of requests whose positions run ahead of their tokens."""

from __future__ import annotations

import pytest
import torch

from sglang_omni.engines.admission import admit
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.proto import RequestError


def admitted(
    num_tokens: int, *, ahead: int, wanted: int | None = None, num_positions: int | None = 100
) -> int:
    """``max_new_tokens`` of a prompt whose positions are ``ahead`` of its tokens."""
    request = EngineRequest(
        "r",
        [1] * num_tokens,
        RequestSampling(max_new_tokens=wanted),
        positions=RotaryPositions(torch.zeros(3, num_tokens, dtype=torch.int64), ahead),
    )
    admit(request, vocab_size=9, context_length=100, pool_tokens=1000, num_positions=num_positions)
    return request.max_new_tokens


def test_an_answer_ends_before_the_table_of_positions_does() -> None:
    # Positions 60 to 99 are left; the last token of an answer is never fed back.
    assert admitted(20, ahead=40) == 41
    assert admitted(20, ahead=40, wanted=7) == 7
    assert admitted(20, ahead=80) == 1
    # Behind, as after large images: the tokens are the limit.
    assert admitted(20, ahead=-15) == 80
    assert admitted(20, ahead=40, num_positions=None) == 80


def test_a_prompt_beyond_the_table_is_refused() -> None:
    with pytest.raises(RequestError, match="go up to 100, but the model knows 100"):
        admitted(20, ahead=81)
