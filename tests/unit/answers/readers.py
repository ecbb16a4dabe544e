"""Reads answers in pieces, as they come from a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sglang_omni.answers.delta import Delta
from sglang_omni.answers.reader import AnswerReader, Reading, reader_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_current_temperature",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {"type": "string"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer"},
                },
                "required": ["location"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_stock_fundamentals"}},
]


class Read(NamedTuple):
    content: str
    reasoning: str
    calls: list[tuple[str, str]]


def reading_of(calls: str | None = None, thinking: str | None = None, *, inside: bool = False) -> Reading:
    return Reading(calls=calls, thinking=thinking, inside=inside, sampling={})


def read(reading: Reading, text: str, cuts: Iterable[int] = (), **params: Any) -> Read:
    """What a reader finds in a text that comes in pieces; what it streams is checked to be the whole."""
    reader = reader_of(reading, {"tools": TOOLS, **params})
    news = [reader.feed(text[a:b]) for a, b in pairwise([0, *cuts, len(text)])]
    return joined(reader, [*news, reader.finish()])


def joined(reader: AnswerReader, news: Sequence[Delta]) -> Read:
    calls: dict[int, dict[str, Any]] = {}
    for delta in (call for part in news for call in part.calls):
        if delta["name"] is None:
            assert delta["id"] is None
            calls[delta["index"]]["arguments"] += delta["arguments"]
        else:
            assert delta["index"] == len(calls)
            assert delta["id"]
            calls[delta["index"]] = dict(delta)
    assert list(calls.values()) == reader.calls.whole
    reported = Read(
        "".join(part.content for part in news),
        "".join(part.reasoning for part in news),
        [(call["name"], call["arguments"]) for call in calls.values()],
    )
    assert (reported.content, reported.reasoning) == (reader.content, reader.reasoning)
    return reported


def read_in_all_pieces(reading: Reading, text: str, **params: Any) -> Read:
    """The same as ``read``, checked to be the same wherever the text is cut."""
    whole = read(reading, text, **params)
    cuts = [(at,) for at in range(1, len(text))]
    steps = [range(step, len(text), step) for step in (1, 2, 3, 7)]
    for pieces in [*cuts, *steps]:
        assert read(reading, text, pieces, **params) == whole, list(pieces)
    return whole
