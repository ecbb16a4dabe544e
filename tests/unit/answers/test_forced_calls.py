"""Forced calls: what their grammars let a model write is what the families' readers read, and fits the
tools' schemas."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
import xgrammar
from readers import read, reading_of

from sglang_omni.answers.formats import CALL_FORMATS, PLAIN
from sglang_omni.answers.structural_tags import (
    after_thinking,
    asked_for,
    either,
    forced_calls,
    strict_calls,
    structural_tag,
)
from sglang_omni.proto import RequestError

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer"},
        "units": {"enum": ["metric", "imperial"]},
        "at": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
    },
    "required": ["city", "days", "units"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": 'odd "name"', "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop"}},
]
SCHEMAS = {'odd "name"': SCHEMA, "stop": {"type": "object", "maxProperties": 0}}
PLAIN_NAMES = [
    {"type": "function", "function": {**tool["function"], "name": name}}
    for tool, name in zip(TOOLS, ("weather", "stop"), strict=True)
]
FORMATS = {
    "plain": PLAIN,
    **{name: CALL_FORMATS[name] for name in ("hermes", "qwen3_coder", "llama3", "mistral")},
}
END = 128


@cache
def compiler() -> xgrammar.GrammarCompiler:
    tokens = [chr(code) for code in range(END)]
    info = xgrammar.TokenizerInfo([*tokens, "<end>"], vocab_size=END + 1, stop_token_ids=[END])
    return xgrammar.GrammarCompiler(info)


def matcher(answer: dict[str, Any]) -> xgrammar.GrammarMatcher:
    return xgrammar.GrammarMatcher(compiler().compile_structural_tag(structural_tag(answer)))


def is_accepted(answer: dict[str, Any], text: str) -> bool:
    match = matcher(answer)
    return match.accept_string(text) and match.accept_token(END)


def written(answer: dict[str, Any], seed: int) -> str | None:
    """What a model may write that chooses at random; None if it does not come to an end."""
    match, rng = matcher(answer), random.Random(seed)
    allowed = xgrammar.allocate_token_bitmask(1, END + 1)
    text = ""
    while len(text) < 2000:
        match.fill_next_token_bitmask(allowed)
        words = allowed[0].tolist()
        tokens = [token for token in range(END + 1) if words[token // 32] >> token % 32 & 1]
        if tokens == [END] or (END in tokens and rng.random() < 0.7):
            return text
        token = rng.choice([token for token in tokens if token != END])
        assert match.accept_token(token)
        text += chr(token)
    return None


def texts(answer: dict[str, Any]) -> Iterator[str]:
    return filter(None, (written(answer, seed) for seed in range(12)))


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_forced_calls_are_read_back(name: str, parallel: bool) -> None:
    tools = PLAIN_NAMES if name == "qwen3_coder" else TOOLS
    schemas = {tool["function"]["name"]: schema for tool, schema in zip(tools, SCHEMAS.values(), strict=True)}
    answer = forced_calls(FORMATS[name], tools, parallel=parallel)
    seen: set[str] = set()
    counts = set()
    for text in texts(answer):
        content, _, calls = read(reading_of(name), text, range(3, len(text), 5), tools=tools)
        assert content == "", text
        for called, arguments in calls:
            reported = json.loads(arguments, strict=False)
            if name == "qwen3_coder":
                # To its grammar, white space around a value is none of it.
                reported = {
                    key: value.strip() if isinstance(value, str) else value for key, value in reported.items()
                }
            jsonschema.validate(reported, schemas[called])
        seen |= {called for called, _ in calls}
        counts.add(len(calls))
    assert seen == schemas.keys()
    assert counts == {1} if not parallel else len(counts) > 1 and 0 not in counts
    assert not is_accepted(answer, "Hello.")


@pytest.mark.parametrize("name", FORMATS)
def test_strict_arguments_leave_the_rest_free(name: str) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in PLAIN_NAMES]
    form = FORMATS[name]
    answer = strict_calls(form, strict, parallel=True)
    call = next(texts(forced_calls(form, strict[1:], parallel=False)))
    assert is_accepted(answer, "Hello.")
    if name == "plain":
        return
    assert is_accepted(answer, call)
    assert is_accepted(answer, re.sub(r"{\s*}", '{"a": 1}', call)) is (name == "qwen3_coder")


SCHEMA_OF_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
THINK = ("<think>", "</think>")


def test_what_is_asked_for_comes_after_reasoning() -> None:
    answer = asked_for({"json_schema": json.dumps(SCHEMA_OF_A)})
    assert answer is not None
    free, inside = after_thinking(THINK, answer, inside=False), after_thinking(THINK, answer, inside=True)
    for text in ('{"a": 1}', '<think>\nHm {.\n</think>\n\n{"a": 1}'):
        assert is_accepted(free, text), text
    assert is_accepted(inside, 'Hm {.\n</think>\n\n{"a": 1}')
    for wrong in ("Hm.", '<think>{"a": 1}', "<think>x</think>y", "<think>x</think>{}"):
        assert not is_accepted(free, wrong), wrong
    assert not is_accepted(inside, '{"a": 1}')


def test_an_answer_in_a_format_or_calls() -> None:
    schema = asked_for({"regex": "yes|no"})
    assert schema is not None
    calls = forced_calls(CALL_FORMATS["hermes"], PLAIN_NAMES[1:], parallel=False)
    answer = either(schema, calls)
    for text in ("yes", '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'):
        assert is_accepted(answer, text), text
    assert not is_accepted(answer, "maybe")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"json_schema": "{"}, "json_schema"),
        ({"structural_tag": '{"structures": []}'}, "structural_tag"),
        ({"structural_tag": "[]"}, "structural_tag"),
    ],
)
def test_what_is_no_format(params: dict[str, str], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        asked_for(params)
    assert refused.value.param == param
    assert asked_for({}) is None
