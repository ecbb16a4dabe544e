"""How codes of speech are drawn: which fields a request may have, and what of them reaches the pipeline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from sglang_omni.client import Client, RequestError
from sglang_omni.models.csm.config import CsmPipelineConfig
from sglang_omni.models.fish_s2_pro.config import FishS2PipelineConfig
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.serve.front.validation import validation_error
from sglang_omni.serve.models.speech import CreateSpeechRequest, SpeechItem
from sglang_omni.serve.models.speech_stream import SpeechStreamConfig
from sglang_omni.serve.routes.speech_encoding import check_speech
from sglang_omni.serve.state import AppState, Capabilities

# Each with a value that it may have, and one that it may not.
FIELDS: dict[str, tuple[float, Any, str]] = {
    "temperature": (0.0, 2.5, "must be at most 2"),
    "top_p": (0.9, 0, "must be more than 0"),
    "top_k": (-1, 1.5, "must be a whole number"),
    "min_p": (0.1, 2, "must be at most 1"),
    "repetition_penalty": (1.5, 0, "must be more than 0"),
    "presence_penalty": (0.5, 3, "must be at most 2"),
    "frequency_penalty": (-0.5, "much", "must be a number"),
    "max_new_tokens": (7, 0, "must be at least 1"),
}
NOT_OF_CSM = {"repetition_penalty", "presence_penalty", "frequency_penalty"}


def state(config: Any) -> AppState:
    return AppState(Client(SimpleNamespace()), capabilities=Capabilities.of(config))


def said(**fields: Any) -> CreateSpeechRequest:
    return CreateSpeechRequest.model_validate({"input": "Hello.", **fields})


def refusal(server: AppState, **fields: Any) -> tuple[str | None, str | None, str]:
    with pytest.raises(RequestError) as caught:
        check_speech(server, said(**fields), None, None)
    return caught.value.param, caught.value.code, caught.value.message


@pytest.fixture(scope="module")
def speech_chat() -> AppState:
    return state(SpeechChatPipelineConfig())


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_the_parameters_of_who_has_a_use_for_them(name: str, speech_chat: AppState) -> None:
    value, _, _ = FIELDS[name]
    for kind in (said, SpeechStreamConfig, lambda **given: SpeechItem(input="Hello.", **given)):
        assert kind(**{name: value}).given == {name: value}
    check_speech(state(FishS2PipelineConfig(model_path="x")), said(**{name: value}), None, None)
    unsupported = (
        name,
        "unsupported_parameter",
        f"{name}: of no effect on this model's speech; leave it out",
    )
    assert refusal(speech_chat, **{name: value}) == unsupported
    if name in NOT_OF_CSM:
        assert refusal(state(CsmPipelineConfig(model_path="x")), **{name: value}) == unsupported
    else:
        check_speech(state(CsmPipelineConfig(model_path="x")), said(**{name: value}), None, None)


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_is_reported(name: str) -> None:
    _, wrong, message = FIELDS[name]
    with pytest.raises(ValidationError) as caught:
        said(**{name: wrong})
    error = validation_error(caught.value.errors(), CreateSpeechRequest)
    assert error.param == name
    assert message in str(error)


def test_the_limit_of_frames_has_two_names(speech_chat: AppState) -> None:
    fish = state(FishS2PipelineConfig(model_path="x"))
    assert said(max_tokens=5).given == {"max_new_tokens": 5}
    both = said(max_tokens=5, max_new_tokens=5)
    assert both.given == {"max_new_tokens": 5}
    check_speech(fish, both, None, None)
    assert refusal(fish, max_tokens=5, max_new_tokens=6)[0] == "max_new_tokens"
    # A refusal names what was sent.
    param, code, message = refusal(speech_chat, max_tokens=5)
    assert (param, code) == ("max_tokens", "unsupported_parameter")
    assert message.startswith("max_tokens: of no effect")
