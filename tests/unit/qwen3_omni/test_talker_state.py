"""A talker's next row is known one token of the answer late."""

from __future__ import annotations

import pytest
import torch

from sglang_omni.models.qwen3_omni.components.checkpoint import CodecIds, TokenIds
from sglang_omni.models.qwen3_omni.components.talker_prompt import TalkerPrompt, talker_prompt
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.proto import RequestError

TOKENS = TokenIds(im_start=1, im_end=2, user=4, assistant=5, audio=6, image=7, video=8)
CODEC = CodecIds(nothink=90, think_bos=91, think_eos=92, pad=93, bos=94, eos=95)
SYSTEM = [1, 3, 10, 31, 32, 2, 10]
HELLO = [1, 4, 10, 41, 42, 2, 10]
PICTURE = [1, 4, 10, 43, 7, 7, 44, 2, 10]
ANSWER = [1, 5, 10, 51, 2, 10]
HEADER = [1, 5, 10]
ROWS = 9


def prompt_of(*ids: int) -> TalkerPrompt:
    return talker_prompt(ids, TOKENS, CODEC, speaker_id=99)


def state_of(*ids: int) -> Qwen3TalkerState:
    return Qwen3TalkerState(prompt_of(*ids), max_new_tokens=100)


def ready(state: Qwen3TalkerState) -> int:
    """Rows that are there after the prompt's; -1 where the prompt's are not."""
    return max((n for n in range(20) if state.is_ready(state.num_prompt_rows + n)), default=-1)


def test_only_the_users_turns_are_heard() -> None:
    prompt = prompt_of(*SYSTEM, *HELLO, *ANSWER, *PICTURE, *HEADER)
    assert prompt.row_ids[:-ROWS].tolist() == HELLO + PICTURE
    assert prompt.row_ids[-ROWS:-6].tolist() == HEADER
    assert prompt.codec_ids.tolist() == [90, 91, 92, 99, 93, 94]
    assert prompt.rope_ids[-ROWS:] == [TOKENS.tts_pad] * ROWS
    assert prompt.token_ids == [94] * prompt.num_rows


def test_media_are_counted_over_all_turns() -> None:
    prompt = prompt_of(*[1, 3, 10, 8, 8, 8, 2, 10], *HELLO, *PICTURE, *HEADER)
    assert prompt.media_rows.tolist() == [len(HELLO) + 4, len(HELLO) + 5]
    assert prompt.media_index.tolist() == [3, 4]


def test_a_prompt_without_user_is_the_answers_beginning_alone() -> None:
    assert prompt_of(*SYSTEM, *HEADER).num_rows == ROWS


@pytest.mark.parametrize("ids", [HELLO, [*HELLO, 1, 5], [50, 51]])
def test_a_prompt_that_leaves_nothing_to_speak_is_refused(ids: list[int]) -> None:
    with pytest.raises(RequestError, match="end with the header of an assistant turn"):
        prompt_of(*ids)


def test_text_is_known_one_token_late() -> None:
    state = state_of(*HELLO, *HEADER)
    assert ready(state) == -1
    state.feed([60])
    assert ready(state) == -1
    state.feed([61])
    assert ready(state) == 0
    state.feed([62, 63])
    assert ready(state) == 2
    assert state.text(0, 9)[: state.num_text] == [60, 61, 62]
    state.end_text()
    assert ready(state) == 19
    assert state.num_text == 3
    assert not state.is_silent


@pytest.mark.parametrize("tokens", [[], [2]])
def test_an_answer_of_one_token_is_silent(tokens: list[int]) -> None:
    state = state_of(*HELLO, *HEADER)
    state.feed(tokens)
    assert not state.is_silent
    state.end_text()
    assert state.is_silent
    assert ready(state) == -1


def test_two_tokens_speak_one() -> None:
    state = state_of(*HELLO, *HEADER)
    state.feed([60, 2])
    state.end_text()
    assert not state.is_silent
    assert ready(state) == 19


def test_an_answer_that_the_prompt_begins_is_spoken_from_there() -> None:
    state = state_of(*HELLO, *HEADER, 60, 61)
    assert ready(state) == 1
    state.feed([62])
    assert ready(state) == 1
    state.feed([63])
    assert ready(state) == 2


def test_media_are_waited_for() -> None:
    state = state_of(*PICTURE, *HEADER)
    state.feed([60, 61])
    assert ready(state) == -1
    state.media_hidden = torch.zeros(2, 4)
    assert ready(state) == 0
