"""What JSON texts hold is counted before anything is made of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sglang_omni._core import json_excess

NONE = dict.fromkeys(("text", "values", "parts", "names", "depth"), 2**40) | {"depth": 64}


def excess(body: str | bytes, **limits: int) -> str | None:
    return json_excess(body.encode() if isinstance(body, str) else body, **(NONE | limits))


def least(text: str | bytes, name: str) -> int:
    """The lowest limit that ``text`` is within."""
    return next(limit for limit in range(10_000) if excess(text, **{name: limit}) is None)


def count(value: Any) -> tuple[int, int, int, int]:
    """Values, parts, most names and depth, as the parser has them."""
    if isinstance(value, dict | list):
        inner = [count(each) for each in (value.values() if isinstance(value, dict) else value)]
        names = len(value) if isinstance(value, dict) else 0
        return (
            1 + sum(each[0] for each in inner),
            1 + sum(each[1] for each in inner),
            max([names, *(each[2] for each in inner)]),
            1 + max([0, *(each[3] for each in inner)]),
        )
    return 1, isinstance(value, str), 0, 0


def anything(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(7 if depth < 6 else 5)
    if kind < 5:
        return [None, True, draw.randrange(-(10**9), 10**9), draw.random(), draw.choice(_TEXTS)][kind]
    items = [anything(draw, depth + 1) for _ in range(draw.randrange(5))]
    return items if kind == 5 else {f"{draw.choice(_TEXTS)}{index}": each for index, each in enumerate(items)}


_TEXTS = ["", "a", '"', "\\", '\\"', "[{,:", "}]", "é\u2028", "\x00", "url"]


@pytest.mark.parametrize("seed", range(200))
def test_counts_are_the_parsers(seed: int) -> None:
    value = anything(random.Random(seed))
    text = json.dumps(value, indent=seed % 3 or None, ensure_ascii=bool(seed % 2))
    found = [least(text, name) for name in ("values", "parts", "names", "depth")]
    assert found == list(count(value)), text


@pytest.mark.parametrize(
    ("text", "media"),
    [
        ('{"url":"%s"}', True),
        ('{"a":[{"image_url" : {"url"\n:\t"%s"}}]}', True),
        ('{"input_audio":{"data":"%s","format":"wav"}}', True),
        ('{"images":["","%s"]}', True),
        ('{"audios":["%s"],"videos":[]}', True),
        ('{"videos":["%s"]}', True),
        ('{"%s":"url"}', False),
        ('{"content":"%s"}', False),
        ('{"content":["url","%s"]}', False),
        ('{"images":[["%s"]]}', False),
        ('{"images":{"a":"%s"}}', False),
        ('["url","%s"]', False),
        ('"%s"', False),
        ('{"data":{"content":"%s"}}', False),
        ('{"data":["%s"]}', False),
        ('{"data":1,"content":"%s"}', False),
        ('{"prompt":"data","x":"%s"}', False),
    ],
)
def test_media_are_not_text(text: str, media: bool) -> None:
    whole = text % ("a" * 1000)
    assert least(whole, "text") == len(whole) - 1000 * media


def test_an_escape_of_a_medium_is_text() -> None:
    whole = '{"url":"' + "\\/" * 100 + "a" * 500 + '"}'
    assert least(whole, "text") == len(whole) - 500


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b'"',
        b'"\\',
        b"[",
        b"]",
        b"]]]]",
        b'{"',
        b'{"a',
        b'{"a"',
        b",,,",
        b"\xff" * 9,
        b'{"url":"a\\',
    ],
)
def test_what_is_no_json_is_counted_as_far_as_it_goes(text: bytes) -> None:
    assert excess(text) is None
    assert excess(text + b"[" * 65) in ("depth", None)
