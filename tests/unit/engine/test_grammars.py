"""Grammars: what is refused, how one is followed, and how compiled ones are kept."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest
import torch
from constrained_engines import END, SIZE, VOCABULARY, grammars

from sglang_omni.model_runner import grammar as grammar_module
from sglang_omni.model_runner.grammar import Grammars, GrammarState
from sglang_omni.proto import RequestError

WAIT_S = 60


@pytest.fixture(scope="module")
def compiler() -> Grammars:
    return grammars()


def begin(compiler: Grammars, kind: str, text: str) -> GrammarState:
    return compiler.compile(kind, text).result(WAIT_S).begin()


def allowed(state: GrammarState) -> list[int]:
    masks = torch.zeros(2, -(-SIZE // 32), dtype=torch.int32)
    state.fill(masks, 1)
    assert not masks[0].any()
    return [token for token in range(SIZE) if masks[1, token // 32].item() >> (token % 32) & 1]


def follow(state: GrammarState, text: str) -> bool:
    return all(state.accept(VOCABULARY.index(bytes([byte]))) for byte in text.encode())


def test_an_answer_is_followed_to_its_end(compiler: Grammars) -> None:
    state = begin(compiler, "regex", "ab?")
    assert allowed(state) == [ord("a")] == allowed(state)
    assert state.accept(ord("a"))
    assert allowed(state) == [ord("b"), END]
    assert not state.accept(ord("c"))
    assert state.accept(ord("b"))
    assert (allowed(state), state.is_over) == ([END], False)
    assert state.accept(END)
    assert state.is_over


def test_without_end_tokens_an_answer_ends_as_soon_as_it_matches() -> None:
    state = begin(Grammars(lambda: VOCABULARY, []), "regex", "ab")
    assert follow(state, "a")
    assert not state.is_over
    assert follow(state, "b")
    assert state.is_over


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("regex", "(a", "The parenthesis is not closed"),
        ("regex", "(?=a)b", "Lookahead is not supported"),
        ("ebnf", "root ::= other", 'Rule "other" is not defined'),
        ("ebnf", "root ::= " + "(" * 20000 + '"a"' + ")" * 20000, "Nest layer exceeded"),
        ("json_schema", "{nope", "no JSON"),
        ("json_schema", "[1]", "must be a JSON object"),
        ("json_schema", '{"type": "strin"}', 'Unsupported type "strin"'),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum greater than maximum"),
        ("json_schema", '{"minimum": NaN}', "NaN is no number"),
        ("json_schema", '{"type":"array","items":' * 2000 + "{}" + "}" * 2000, "more than 100 levels deep"),
        ("json_schema", '{"a":' * 200000 + "1" + "}" * 200000, "more than 100 levels deep"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "Cannot find field"),
        ("structural_tag", '{"type": "x"}', "Structural tag"),
        (
            "structural_tag",
            '{"format": {"json_schema": {"not": {}}}}',
            "structural_tag.json_schema: 'not' is not supported",
        ),
    ],
)
def test_a_wrong_grammar_says_what_is_wrong(compiler: Grammars, kind: str, text: str, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        compiler.compile(kind, text).result(WAIT_S)
    assert said in refused.value.message
    assert refused.value.message.startswith(kind)
    assert "cpp" not in refused.value.message
    assert (refused.value.param, refused.value.code) == (kind, "invalid_value")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "uniqueItems": True}, "json_schema: 'uniqueItems' is not supported"),
        ({"properties": {"a": {"not": {}}}}, "json_schema.properties.a: 'not' is not supported"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "'allOf' of several schemas"),
        ({"$ref": "http://a/b"}, "'$ref' must be a path inside the schema"),
        ({"$ref": "#x"}, "'$ref' must be a path inside the schema"),
        ({"$ref": "#/$defs/a", "maxLength": 1}, "'maxLength' beside '$ref'"),
        ({"anyOf": [{}], "type": "object"}, "'type' beside 'anyOf'"),
        ({"type": "string", "enum": ["a", 1]}, "1 in 'enum' is not of type 'string'"),
        ({"maxLength": 3}, "'maxLength' without a 'type'"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "'maxLength' beside 'pattern'"),
        ({"type": "string", "pattern": "^.{1,200}$"}, "{1,200} in a pattern with"),
        ({"type": "object", "required": ["a"]}, "'a' in 'required' must be among 'properties'"),
        ({"properties": {"b": {}}, "required": ["b", "a"]}, "'a' in 'required' must be among"),
        ({"type": "number", "multipleOf": 2}, "'multipleOf' is not supported"),
        ({"propertyNames": {}, "properties": {}}, "'propertyNames' beside 'properties'"),
        ({"type": "object", "minProperties": 2}, "'minProperties' above 1"),
        ({"items": {"if": {}}}, "json_schema.items: 'if'"),
        ({"anyOf": [{}, {"contains": {}}]}, "json_schema.anyOf[1]: 'contains'"),
    ],
)
def test_what_answers_cannot_be_held_to_is_refused(
    compiler: Grammars, schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=r"^json_schema") as refused:
        compiler.compile("json_schema", json.dumps(schema)).result(WAIT_S)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("schema", "answer", "valid"),
    [
        ({"type": "object"}, '{"a": [1, {"b": null}]}', True),
        ({"type": "string", "maxLength": 2}, '"ab"', True),
        ({"type": "string", "maxLength": 2}, '"abc"', False),
        # A raw control character is no JSON.
        ({"type": "string", "maxLength": 2}, '"\x01"', False),
        ({"type": ["string", "null"], "maxLength": 1}, "null", True),
        ({"allOf": [{"type": "integer", "minimum": 3}]}, "2", False),
        ({"type": "integer", "title": "t", "default": 3, "examples": [1]}, "1", True),
    ],
)
def test_schemas_mean_what_they_say(
    compiler: Grammars, schema: dict[str, Any], answer: str, valid: bool
) -> None:
    state = begin(compiler, "json_schema", json.dumps(schema))
    assert (follow(state, answer) and END in allowed(state)) == valid


def test_one_text_is_compiled_once_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = grammars()
    first = compiler.compile("regex", "a")
    assert compiler.compile("regex", "a") is first
    size = first.result(WAIT_S).grammar.memory_size_bytes
    monkeypatch.setattr(grammar_module, "CACHE_BYTES", 2 * size + size // 2)
    second = compiler.compile("regex", "b")
    second.result(WAIT_S)
    assert compiler.compile("regex", "a") is first
    compiler.compile("regex", "c").result(WAIT_S)
    assert compiler.compile("regex", "a") is first
    assert compiler.compile("regex", "b") is not second


def test_a_wrong_one_is_not_kept() -> None:
    compiler = grammars()
    wrong = compiler.compile("regex", "(")
    assert wrong.exception(WAIT_S) is not None
    assert compiler.compile("regex", "(") is not wrong


def test_without_xgrammar_a_grammar_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(
        RequestError, match=r"^regex: needs xgrammar.*pip install 'sgl-omni\[serve\]'"
    ) as refused:
        grammars().compile("regex", "a").result(WAIT_S)
    assert (refused.value.param, refused.value.code) == ("regex", "unsupported_value")


def test_the_wait_for_a_grammar_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def vocabulary() -> list[bytes]:
        ended.wait(WAIT_S)
        return VOCABULARY

    monkeypatch.setattr(grammar_module, "COMPILE_LIMIT_S", 0.05)
    compiler = Grammars(vocabulary, [END])
    slow = compiler.compile("regex", "a")
    with pytest.raises(RequestError, match="takes longer than"):
        slow.result(WAIT_S)
    ended.set()
    monkeypatch.setattr(grammar_module, "COMPILE_LIMIT_S", WAIT_S)
    assert compiler.compile("regex", "b").result(WAIT_S).kind == "regex"
