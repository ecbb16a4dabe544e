"""The stages that a request passes, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sglang_omni.models.speech_chat import routing
from sglang_omni.preprocessing.request import stage_params, task_of
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

CLIP = np.zeros(10, np.float32)


def request(task: str | None = None, modalities: list[str] | None = None, **inputs: Any) -> OmniRequest:
    metadata: dict[str, Any] = {} if task is None else {"task": task}
    if modalities is not None:
        metadata["output_modalities"] = modalities
    return OmniRequest(inputs or None, {}, metadata)


def payload(of: OmniRequest, **data: Any) -> StagePayload:
    return StagePayload("r", of, data)


WRITTEN: dict[str, Any] = {"prompt_token_ids": [1]}
HEARD: dict[str, Any] = {"messages": [], "clips": [CLIP]}
BOTH = ["text", "audio"]


@pytest.mark.parametrize(
    ("of", "data", "preprocess", "terminal", "stream_ends"),
    [
        (request("chat"), WRITTEN, ["thinker"], ["decode"], []),
        (request("chat", ["text"]), HEARD, ["transcribe"], ["decode"], []),
        (request("chat", BOTH), WRITTEN, ["thinker", "speak"], ["decode", "speak"], ["speak"]),
        (request("chat", BOTH), HEARD, ["transcribe", "speak"], ["decode", "speak"], ["speak"]),
        (request("chat", ["audio"]), WRITTEN, ["thinker", "speak"], ["decode", "speak"], ["speak"]),
        (request("completion"), WRITTEN, ["thinker"], ["decode"], []),
        (request("speech"), {"text": "Hello"}, ["speak"], ["speak"], []),
        (request("speech", ["audio"]), {"text": "Hello"}, ["speak"], ["speak"], []),
        (request("transcription"), {"audio": b"RIFF"}, ["transcribe"], ["decode"], []),
        (request("translation"), {"audio": b"RIFF"}, ["transcribe"], ["decode"], []),
    ],
)
def test_routes(
    of: OmniRequest, data: dict, preprocess: list[str], terminal: list[str], stream_ends: list[str]
) -> None:
    assert routing.after_preprocess("r", payload(of, **data)) == preprocess
    assert routing.terminal_stages(of) == terminal
    assert routing.thinker_stream_ends("r", payload(of)) == stream_ends


@pytest.mark.parametrize(
    ("task", "stage"), [("chat", "thinker"), ("transcription", "decode"), ("translation", "decode")]
)
def test_where_transcripts_go(task: str, stage: str) -> None:
    assert routing.after_transcribe("r", payload(request(task))) == [stage]


@pytest.mark.parametrize(
    ("inputs", "task"),
    [
        ({"messages": []}, "chat"),
        ({"prompt": "x"}, "completion"),
        ({"prompt_token_ids": [1]}, "completion"),
        ({"text": "x"}, "speech"),
        ({"audio": b"x"}, "transcription"),
    ],
)
def test_the_inputs_tell_the_task_where_nobody_else_does(inputs: dict, task: str) -> None:
    assert task_of(request(**inputs)) == task


def test_bare_text_is_a_chat() -> None:
    assert task_of(OmniRequest("Hello")) == "chat"


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown task 'sing'"):
        routing.terminal_stages(request("sing"))


def test_the_voice_gets_no_clips() -> None:
    chat = payload(request("chat", ["audio"]), messages=[], clips=[CLIP])
    speech = payload(request("speech"), text="Hello")

    assert routing.to_speak(chat).data == {}
    assert routing.to_speak(speech).data == {"text": "Hello"}
    assert chat.data["clips"]


def test_a_stages_own_parameters_win() -> None:
    of = OmniRequest(None, {"speed": 1.0, "seed": 1, "stage_params": {"speak": {"speed": 2.0}}})

    assert stage_params(of, "speak")["speed"] == 2.0
    assert stage_params(of, "speak")["seed"] == 1
    assert stage_params(of, "thinker")["speed"] == 1.0
