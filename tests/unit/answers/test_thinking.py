"""Reasoning before the answer: marks of its own, and prompts that end within it."""

from __future__ import annotations

import pytest
from readers import Read, read_in_all_pieces, reading_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nTwo and two.\n</think>\n\nFour.", Read("Four.", "Two and two.", [])),
        ("\n<think>a</think>b", Read("b", "a", [])),
        ("<think>\n\n</think>\n\nFour.", Read("Four.", "", [])),
        ("<think>cut off ", Read("", "cut off", [])),
        # Not at the beginning: the answer speaks of it.
        ("Write <think>x</think>.", Read("Write <think>x</think>.", "", [])),
        (" Hi <th", Read(" Hi <th", "", [])),
        ("<thin ice", Read("<thin ice", "", [])),
        ("a </think> b", Read("a </think> b", "", [])),
    ],
)
def test_a_model_that_may_think(text: str, expected: Read) -> None:
    assert read_in_all_pieces(reading_of(thinking="qwen3"), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two and two.\n</think>\n\nFour.", Read("Four.", "Two and two.", [])),
        ("<think>\nTwo.</think>Four.", Read("Four.", "Two.", [])),
        ("cut </th", Read("", "cut </th", [])),
        ("</think>Four.", Read("Four.", "", [])),
        ("a < b </think> c </think>", Read("c </think>", "a < b", [])),
    ],
)
def test_a_prompt_that_ends_within_reasoning(text: str, expected: Read) -> None:
    assert read_in_all_pieces(reading_of(thinking="qwen3", inside=True), text) == expected


def test_calls_after_reasoning_and_none_within_it() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    text = f"<think>\nI could write {call}.\n</think>\n\nI look.\n{call}"
    expected = Read("I look.", f"I could write {call}.", [("f", '{"a": 1}')])
    assert read_in_all_pieces(reading_of("hermes", "qwen3"), text) == expected


def test_other_marks() -> None:
    text = "[THINK]Two.[/THINK]Four."
    assert read_in_all_pieces(reading_of(thinking="mistral"), text) == Read("Four.", "Two.", [])
