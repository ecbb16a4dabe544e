"""Sampling fields are checked before a request runs, and errors name the field."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_omni.engines import SamplingParams
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.proto import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -0.1),
        ("temperature", 10**400),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("nan")),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("seed", "x"),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("stop_token_ids", ["a"]),
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("ignore_eos", "yes"),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: "x"}),
        ("logit_bias", dict.fromkeys(range(1025), 1)),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", 1.5),
        ("json_schema", {"type": "object"}),
        ("regex", ""),
        ("ebnf", "a" * 65537),
    ],
)
def test_bad_values(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        RequestSampling.from_params({field: value})

    assert (caught.value.param, caught.value.status) == (field, 400)


def test_a_requests_flat_parameters() -> None:
    params = RequestSampling.from_params(
        {"temperature": 0, "top_k": 5.0, "stop": "end", "stop_token_ids": [3], "seed": None, "voice": "x"}
    )

    assert params == RequestSampling(temperature=0.0, top_k=5, stop=("end",), stop_token_ids=(3,))


def test_what_an_answer_must_match() -> None:
    assert RequestSampling.from_params({"regex": "a"}).grammar == ("regex", "a")
    assert RequestSampling.from_params({}).grammar is None
    with pytest.raises(RequestError, match="only one of regex and ebnf") as caught:
        RequestSampling.from_params({"ebnf": "a", "regex": "b"})
    assert caught.value.param == "ebnf"


def test_biases_by_number_and_by_name() -> None:
    assert RequestSampling.from_params({"logit_bias": {"7": 1, 8: -2.5}}).logit_bias == ((7, 1.0), (8, -2.5))


def test_code_outside_knows_it_by_another_name() -> None:
    assert SamplingParams is RequestSampling
