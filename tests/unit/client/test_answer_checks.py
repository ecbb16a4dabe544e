"""What a server says of results that its routes cannot use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sglang_omni.client.types import ClientError
from sglang_omni.generation.checks import check_answer, check_fields

SOUND = {"audio_data": np.zeros(3, np.float32), "sample_rate": 8000}


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"text": 3}, "'text' as int 3; it must be a str"),
        ({"text": "", "finish_reason": 1}, "'finish_reason' as int 1; it must be a str, such as 'stop'"),
        ({"usage": [1]}, "'usage' as list [1]; it must be a dict of token counts"),
        ({"segments": [{"text": "a"}]}, "it must be a list of dicts with start, end and text"),
        ({**SOUND, "words": [{"word": "a"}]}, "it must be a list of dicts with word, start and end"),
        ({"tool_calls": ["f"]}, "it must be a list of dicts with index, id, name and arguments"),
        ({**SOUND, "sample_rate": 0}, "'sample_rate' as int 0; it must be an int above 0, in Hz"),
        ({**SOUND, "sample_rate": "8000"}, "'sample_rate' as str '8000'; it must be an int, in Hz"),
        (
            {**SOUND, "audio_data": np.zeros(3, np.int16)},
            "'audio_data' as an array of int16; it must be float",
        ),
        ({**SOUND, "audio_data": torch.zeros(3, dtype=torch.int16)}, "as an array of torch.int16"),
        ({**SOUND, "audio_data": "abc"}, "'audio_data' as str 'abc'; it must be float samples"),
    ],
)
def test_a_field_that_cannot_be_read(fields: dict[str, Any], reported: str) -> None:
    with pytest.raises(ClientError) as error:
        check_fields(fields, stage="say")
    assert str(error.value).startswith("stage 'say' returned ")
    assert reported in str(error.value)
    with pytest.raises(ClientError, match=r"^stage 'one' returned "):
        check_answer("chat", {"one": fields, "two": {"text": "a"}}, set())


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a", "usage": {"prompt_tokens": 1}, "finish_reason": None, "segments": []},
        SOUND,
        {**SOUND, "audio_data": torch.zeros(3), "sample_rate": np.int64(8000)},
        {**SOUND, "audio_data": b"\0\0"},
        {"own": object()},
        "text",
        None,
    ],
)
def test_what_can_be_read_is_left_alone(fields: Any) -> None:
    check_fields(fields, stage="say")


@pytest.mark.parametrize(
    ("task", "result", "streamed"),
    [
        ("chat", {"text": ""}, set()),
        ("chat", "plain", set()),
        ("chat", None, {"text"}),
        ("chat", {"tool_calls": [], "modality": "text"}, set()),
        ("completion", SOUND, set()),
        ("completion", {"codes": [[1]]}, set()),
        ("speech", SOUND, set()),
        ("speech", None, {"audio_data", "sample_rate"}),
        ("transcription", {"text": ""}, set()),
        ("chat", {"write": {"text": "a"}, "speak": None}, set()),
    ],
)
def test_an_answer(task: str, result: Any, streamed: set[str]) -> None:
    check_answer(task, result, streamed)


@pytest.mark.parametrize(
    ("task", "result", "streamed", "reported"),
    [
        ("chat", {"reply": 3}, set(), "stage 's' returned a dict with 'reply'; chat needs an answer with"),
        ("chat", None, {"input_transcript"}, "stage 's' returned None; chat needs"),
        ("chat", [1], set(), "stage 's' returned a value of type list; chat needs"),
        ("completion", {}, set(), "stage 's' returned a dict with nothing in it; completion needs"),
        (
            "speech",
            {"text": "a"},
            {"text"},
            "returned a dict with 'text'; speech needs sound, as in AudioResult",
        ),
        (
            "translation",
            SOUND,
            set(),
            'translation needs a transcript with "text", as in Transcript(text=...)',
        ),
    ],
)
def test_no_answer(task: str, result: Any, streamed: set[str], reported: str) -> None:
    with pytest.raises(ClientError) as error:
        check_answer(task, result, streamed, stage="s")
    assert reported in str(error.value)
