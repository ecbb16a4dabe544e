"""Calls of tools as three families write them, from the examples of their documentation: whole, and cut
anywhere."""

from __future__ import annotations

import json
import re

import pytest
from readers import Read, read, read_in_all_pieces, reading_of

from sglang_omni.answers.reader import reader_of

WEATHER = '{"location": "San Francisco, CA", "unit": "celsius"}'

# What the model writes, by format: https://huggingface.co/NousResearch/Hermes-2-Pro-Mistral-7B,
# https://qwen.readthedocs.io/en/latest/framework/function_call.html,
# https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1, .../llama3_2,
# https://docs.mistral.ai/capabilities/function_calling and mistral-common's tokenizer versions.
PUBLISHED = [
    (
        "hermes",
        '<tool_call>\n{"arguments": {"symbol": "TSLA"}, "name": "get_stock_fundamentals"}\n</tool_call>',
        Read("", "", [("get_stock_fundamentals", '{"symbol": "TSLA"}')]),
    ),
    (
        "hermes",
        '<tool_call>\n{"name": "get_current_temperature", "arguments": ' + WEATHER + "}\n</tool_call>",
        Read("", "", [("get_current_temperature", WEATHER)]),
    ),
    (
        "hermes",
        "I look both up.\n"
        '<tool_call>\n{"name": "get_current_temperature", "arguments": ' + WEATHER + "}\n</tool_call>\n"
        '<tool_call>\n{"name": "get_temperature_date", "arguments": {"date": "2024-10-01"}}\n</tool_call>',
        Read(
            "I look both up.",
            "",
            [
                ("get_current_temperature", WEATHER),
                ("get_temperature_date", '{"date": "2024-10-01"}'),
            ],
        ),
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_current_temperature>\n"
        "<parameter=location>\nSan Francisco, CA\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        Read("", "", [("get_current_temperature", '{"location": "San Francisco, CA", "days": 3}')]),
    ),
    (
        "llama3",
        '{"name": "get_current_temperature", "parameters": ' + WEATHER + "}",
        Read("", "", [("get_current_temperature", WEATHER)]),
    ),
    (
        "llama3",
        '<|python_tag|>{"type": "function", "name": "get_current_temperature", "parameters": '
        + WEATHER
        + "}",
        Read("", "", [("get_current_temperature", WEATHER)]),
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_current_temperature", "arguments": ' + WEATHER + "}, "
        '{"name": "get_stock_fundamentals", "arguments": {"symbols": ["A", "]"]}}]',
        Read(
            "",
            "",
            [
                ("get_current_temperature", WEATHER),
                ("get_stock_fundamentals", '{"symbols": ["A", "]"]}'),
            ],
        ),
    ),
    (
        "mistral",
        "[TOOL_CALLS]get_current_temperature[ARGS]" + WEATHER + "[TOOL_CALLS]get_stock_fundamentals{}",
        Read("", "", [("get_current_temperature", WEATHER), ("get_stock_fundamentals", "{}")]),
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), PUBLISHED)
def test_published_examples(name: str, text: str, expected: Read) -> None:
    assert read_in_all_pieces(reading_of(name), text) == expected
    for _, arguments in expected.calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3", "mistral", "plain"])
@pytest.mark.parametrize(
    "text", ["Hello.", " a <b> [1, 2] c \n", "", "\n", "x <tool_ca", "[TOOL", "<|python", "} ]"]
)
def test_an_answer_without_calls_is_content_as_it_is(name: str, text: str) -> None:
    assert read_in_all_pieces(reading_of(name), text) == Read(text, "", [])


# What no call begins with is content, as with vLLM; a call that has begun keeps what there is of it.
BROKEN = [
    ("hermes", "<tool_call>what?</tool_call> Hm.", Read("<tool_call>what?</tool_call> Hm.", "", [])),
    ("hermes", '<tool_call>\n{"name": 5}', Read('<tool_call>\n{"name": 5}', "", [])),
    ("hermes", '<tool_call>\n{"na', Read('<tool_call>\n{"na', "", [])),
    ("hermes", '<tool_call>\n{"arguments": {}}', Read('<tool_call>\n{"arguments": {}}', "", [])),
    ("hermes", '<tool_call>{"name": "f"', Read("", "", [("f", "")])),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', Read("", "", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', Read("", "", [("f", '{"a": "x')])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> Done.',
        Read(" Done.", "", [("f", '{"a": 1')]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {a: None}}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
        Read("", "", [("f", "{a: None}"), ("g", "{}")]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
        Read("", "", [("f", '{"a": "é"}')]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', Read("", "", [("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"}"}}</tool_call>',
        Read("", "", [("f", '{"a": "</tool_call>\\"}"}')]),
    ),
    # Without a mark, only the tools that there are can be called.
    (
        "llama3",
        '{"name": "Ada", "parameters": 3} is JSON',
        Read('{"name": "Ada", "parameters": 3} is JSON', "", []),
    ),
    ("llama3", '{"city": "Paris"}', Read('{"city": "Paris"}', "", [])),
    ("llama3", "<|python_tag|>search.call(q='x')", Read("search.call(q='x')", "", [])),
    ("mistral", "[TOOL_CALLS] hm?", Read(" hm?", "", [])),
    ("qwen3_coder", "<tool_call> <b>", Read("<tool_call> <b>", "", [])),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n[1]\n</parameter>\n<parameter=b>\ncut of",
        Read("", "", [("f", '{"a": [1], "b": "cut of"')]),
    ),
    ("qwen3_coder", "<tool_call><function=f></function>", Read("", "", [("f", "{}")])),
]


@pytest.mark.parametrize(("name", "text", "expected"), BROKEN)
def test_what_a_model_may_write_amiss(name: str, text: str, expected: Read) -> None:
    assert read_in_all_pieces(reading_of(name), text) == expected


def test_the_arguments_come_as_they_are_written() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"city": "Paris", "days": [1, 2]}}\n</tool_call>'
    reader = reader_of(reading_of("hermes"), {"tools": []})
    reported = [call for letter in text for call in reader.feed(letter).calls]
    assert reported[0]["name"] == "f"
    # A delta a character: nothing waits for the end of the arguments.
    assert [call["arguments"] for call in reported[1:]] == list('{"city": "Paris", "days": [1, 2]}')


def test_one_call_only_if_more_are_not_wanted() -> None:
    one = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    expected = Read("", "", [("f", '{"a": 1}')])
    assert read_in_all_pieces(reading_of("hermes"), one * 3, parallel_tool_calls=False) == expected
    assert len(read(reading_of("hermes"), one * 3).calls) == 3


def test_ids_differ_and_have_their_familys_form() -> None:
    text = '[TOOL_CALLS][{"name": "f"}, {"name": "g"}]'
    for name, form in (("mistral", r"[A-Za-z0-9]{9}"), ("plain", r"call_[0-9a-f]{24}")):
        reader = reader_of(reading_of(name), {"tools": [{"function": {"name": n}} for n in "fg"]})
        reader.feed(text if name == "mistral" else text.removeprefix("[TOOL_CALLS]"))
        first, second = reader.calls.whole
        assert first["id"] != second["id"]
        assert re.fullmatch(form, first["id"])
