"""What validation says, in the words of the caller."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from sglang_omni.serve.front.errors import describe
from sglang_omni.serve.front.validation import field_path, validation_error
from sglang_omni.serve.models.admin import AbortRequest
from sglang_omni.serve.models.chat import ChatCompletionRequest
from sglang_omni.serve.models.completions import CompletionRequest
from sglang_omni.serve.models.generate import NativeRequest
from sglang_omni.serve.models.speech import CreateSpeechRequest
from sglang_omni.serve.models.transcriptions import TranscriptionForm


def refusal(**fields):
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(body)
    return validation_error(caught.value.errors(include_url=False), ChatCompletionRequest)


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        (("body", "messages", 0, "content", "§parts", 1, "§text", "text"), "messages[0].content[1].text"),
        (("stop", "§several", 2), "stop[2]"),
        (("body",), ""),
        (("body", "body"), "body"),
    ],
)
def test_field_path(loc, path):
    assert field_path(loc) == path


def test_all_wrong_fields_are_named():
    error = refusal(temperature=9, max_tokens=-1, top_kk=3)
    assert error.param in ("temperature", "max_tokens")
    for name in ("temperature", "max_tokens", "top_kk"):
        assert name in error.message


def test_whole_numbers_are_fine_where_fractions_are():
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1}
    assert ChatCompletionRequest.model_validate(body).temperature == 1


def test_unforeseen_failure_is_500_with_its_type(caplog):
    status, body = describe(KeyError("x"))
    assert (status, body["error"]["message"]) == (500, "internal error: KeyError: 'x'")
    assert "KeyError" in caplog.text


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"stream_options": {"include_usages": True}}, "did you mean 'include_usage'?"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "did you mean 'content'?"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "x", "detial": 1}}],
                    }
                ]
            },
            "did you mean 'detail'?",
        ),
    ],
)
def test_the_nearest_field_is_one_of_the_same_object(fields, hint):
    assert hint in refusal(**fields).message


def test_a_name_of_another_object_is_not_suggested():
    assert refusal(stream_options={"temprature": 1}).message == "unknown field 'stream_options.temprature'"


BAD = [None, "x", "", " ", 5, -1, 2**70, 1.5, float("nan"), True, [], [None], [5], [[]], [1.5] * 2000]
BAD += [
    "x" * 20_000,
    {},
    {"x": 1},
    {"type": "x"},
    [{"role": "user"}],
    [{"role": 5, "content": [{"type": 1}]}],
]
MODELS = (
    AbortRequest,
    ChatCompletionRequest,
    CompletionRequest,
    NativeRequest,
    CreateSpeechRequest,
    TranscriptionForm,
)


@pytest.mark.parametrize("model", MODELS)
def test_no_sentence_is_pydantics(model):
    """Whatever is wrong with any field is said in the caller's words, not in Python's."""
    seen = 0
    for name in model.model_fields:
        for value in BAD:
            try:
                model.model_validate({name: value})
            except ValidationError as exc:
                for error in exc.errors(include_url=False):
                    message = validation_error([error], model).message
                    assert not re.search(
                        r"should|Input|valid [^U]|validation|Python|§|dictionary", message
                    ), message
                    seen += 1
    assert seen > len(model.model_fields)
