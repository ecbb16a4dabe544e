"""Log-probabilities in the shapes of /v1/completions and of SGLang's /generate; constraints by any name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_omni.client import RequestError, SamplingParams, TokenLogprob
from sglang_omni.serve.models.completions import CompletionRequest
from sglang_omni.serve.routes.completions import mean_logprob
from sglang_omni.serve.routes.constraints import constraint_of, renamed_params
from sglang_omni.serve.routes.legacy_logprobs import LegacyLogprobs
from sglang_omni.serve.routes.native_logprobs import input_fields, output_fields

OTHER = TokenLogprob("no", 9, -2.0, b"no")
HALF = [TokenLogprob("\ufffd", 3, -0.1, b"\xc3"), TokenLogprob("\ufffd", 4, -0.2, b"\xbc")]


def token(text: str, token_id: int, logprob: float | None, *top: TokenLogprob) -> TokenLogprob:
    return TokenLogprob(text, token_id, logprob, text.encode(), list(top))


def test_legacy_lists_count_characters_over_parts() -> None:
    writer = LegacyLogprobs()
    first = writer.write([token("Hé", 1, None), token(" y", 2, -1.0, OTHER)])
    assert first == {
        "tokens": ["Hé", " y"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"no": -2.0, " y": -1.0}],
        "text_offset": [0, 2],
    }
    assert writer.write([*HALF, token("!", 5, -3.0)])["text_offset"] == [4, 4, 5]


def test_a_start_token_does_not_shift_the_text() -> None:
    tokens = [token("<s>", 1, None), token("Hi", 2, -1.0), token("!", 3, -1.0)]
    assert LegacyLogprobs(begins_before=3).write(tokens)["text_offset"] == [0, 0, 2]


def test_native_lists() -> None:
    tokens = [token("a", 1, -1.0, OTHER), token("b", 2, -2.0, OTHER)]
    assert output_fields(tokens, 0, texts=False) == {
        "output_token_logprobs": [[-1.0, 1, None], [-2.0, 2, None]]
    }
    assert output_fields(tokens, 1, texts=True) == {
        "output_token_logprobs": [[-1.0, 1, "a"], [-2.0, 2, "b"]],
        "output_top_logprobs": [[[-2.0, 9, "no"]], [[-2.0, 9, "no"]]],
    }
    assert input_fields(tokens, 1, texts=False) == {
        "input_token_logprobs": [[None, 1, None], [-2.0, 2, None]],
        "input_top_logprobs": [None, [[-2.0, 9, None]]],
    }
    assert input_fields([], 0, texts=False) == {"input_token_logprobs": []}


def test_the_mean_does_not_favour_short_answers() -> None:
    assert mean_logprob([token("a", 1, -1.0), token("b", 2, -3.0)]) == -2.0
    assert mean_logprob([]) == float("-inf")


SCHEMA = {"type": "object", "properties": {"ü": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA, "json_schema"),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", SCHEMA, "json_schema"),
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"', "ebnf"),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
            "response_format",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs.json"),
        (
            {"structured_outputs": {"choice": ["a", 'b"']}},
            "ebnf",
            'root ::= "a" | "b\\""',
            "structured_outputs.choice",
        ),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a", "structured_outputs.regex"),
    ],
)
def test_every_name_of_a_constraint(fields: dict[str, Any], kind: str, text: Any, param: str) -> None:
    constraint = constraint_of(CompletionRequest.model_validate({"prompt": "a", **fields}))
    assert constraint is not None
    found = json.loads(constraint.text) if isinstance(text, dict) else constraint.text
    assert (constraint.kind, found, constraint.param) == (kind, text, param)
    assert getattr(constraint.apply(SamplingParams()), kind) == constraint.text


def test_text_is_no_constraint() -> None:
    body = {"prompt": "a", "response_format": {"type": "text"}}
    assert constraint_of(CompletionRequest.model_validate(body)) is None


def test_errors_name_fields_as_the_request_spells_them() -> None:
    with pytest.raises(RequestError) as refused, renamed_params({"logprobs": "top_logprobs"}):
        raise RequestError("logprobs: give no logprobs, or other top_logprobs", param="logprobs", code="x")
    assert refused.value.message == "top_logprobs: give no top_logprobs, or other top_logprobs"
    assert (refused.value.param, refused.value.code) == ("top_logprobs", "x")
