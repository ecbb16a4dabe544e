"""SGLang's parsers, for families that have no format here."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from readers import Read, joined, reading_of

from sglang_omni.answers.formats import CALL_FORMATS, THINKING
from sglang_omni.answers.parsers import check_parsers, load_parsers
from sglang_omni.answers.reader import reader_of
from sglang_omni.answers.sglang_parsers import call_parser_names, load_sglang, reasoning_parser_names

# Not imported here: engines of other tests decide what SGLang computes on.
pytestmark = pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed")


def test_names() -> None:
    assert {"pythonic", "kimi_k2", "gpt-oss"} <= set(call_parser_names())
    assert {"kimi", "gpt-oss"} <= set(reasoning_parser_names())
    load_parsers("hermes", "none")
    for name in (*call_parser_names(), *CALL_FORMATS):
        check_parsers(name, None)
    for name in (*reasoning_parser_names(), *THINKING):
        check_parsers(None, name)


# A piece is a token, as an engine gives them: SGLang's parsers know their marks as single tokens.
PIECES = {
    "deepseekv3": [
        *(
            "I",
            " look.",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "function",
            "<｜tool▁sep｜>",
            "f",
        ),
        *("\n", "```", "json", "\n", '{"', "city", '":', ' "', "Ulm", '"}', "\n", "```"),
        *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ],
    "glm45": [
        *("I", " look.", "<tool_call>", "f", "\n", "<arg_key>", "city", "</arg_key>", "\n", "<arg_value>"),
        *("Ulm", "</arg_value>", "\n", "</tool_call>"),
    ],
}


@pytest.fixture
def loaded() -> None:
    """As a server does it: at its import, SGLang decides what it computes on, for other tests as well."""
    load_sglang(calls=True, thinking=True)


@pytest.mark.usefixtures("loaded")
@pytest.mark.long
@pytest.mark.parametrize("name", PIECES)
def test_a_family_of_sglang(name: str) -> None:
    properties = {"city": {"type": "string"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    reader = reader_of(reading_of(name), {"tools": [{"type": "function", "function": function}]})
    news = [reader.feed(piece) for piece in PIECES[name]]
    content, _, calls = joined(reader, [*news, reader.finish()])
    assert content.strip() == "I look."
    assert [(called, json.loads(arguments)) for called, arguments in calls] == [("f", {"city": "Ulm"})]


@pytest.mark.usefixtures("loaded")
@pytest.mark.long
def test_reasoning_of_sglang() -> None:
    reader = reader_of(reading_of(thinking="kimi"), {})
    news = [reader.feed(piece) for piece in ("◁think▷", "Two.", "◁/think▷", "Four.")]
    reported = joined(reader, [*news, reader.finish()])
    assert reported == Read("Four.", "Two.", [])
