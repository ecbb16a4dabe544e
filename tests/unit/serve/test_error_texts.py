"""What validation says, in the words of the caller."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sglang_omni.serve.errors import describe
from sglang_omni.serve.protocol import ChatCompletionRequest
from sglang_omni.serve.validation import field_path, validation_error


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


def test_what_cannot_be_honoured_says_what_can():
    assert refusal(n=3).message == "n: not supported here; the only value is 1"


def test_value_of_the_wrong_type_is_not_converted():
    assert refusal(max_tokens="5").param == "max_tokens"
    assert refusal(stream=1).param == "stream"


def test_whole_numbers_are_fine_where_fractions_are():
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1}
    assert ChatCompletionRequest.model_validate(body).temperature == 1


def test_unforeseen_failure_is_500_with_its_type(caplog):
    status, body = describe(KeyError("x"))
    assert (status, body["error"]["message"]) == (500, "internal error: KeyError: 'x'")
    assert "KeyError" in caplog.text
