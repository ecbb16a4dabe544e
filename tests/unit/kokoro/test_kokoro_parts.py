"""How a text is cut into parts, and which of its words are spoken when."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sglang_omni.models.kokoro.languages import language_of
from sglang_omni.models.kokoro.parts import SpokenSpan, aligned, cut_by_chars, cut_by_tokens
from sglang_omni.models.kokoro.speak import word_times
from sglang_omni.preprocessing.voice_blends import VoicePart, voice_parts
from sglang_omni.proto import RequestError

SPACE = 16


@dataclass
class Token:
    """As of ``misaki.en``."""

    text: str
    phonemes: str | None
    whitespace: str = " "


def test_sentences_are_kept_together() -> None:
    text = "One two. Three four! Five six? Seven"
    parts = list(cut_by_chars(text, str.upper, 510, 20))
    assert [part.text for part in parts] == ["One two. Three four!", "Five six? Seven"]
    assert [part.phonemes for part in parts] == ["ONE TWO. THREE FOUR!", "FIVE SIX? SEVEN"]


def test_what_has_too_many_phonemes_is_cut_and_not_cut_off() -> None:
    text = "alpha beta, gamma delta, epsilon"
    parts = list(cut_by_chars(text, lambda words: words * 2, 30))
    assert [part.text for part in parts] == ["alpha beta,", "gamma delta,", "epsilon"]
    # Without any place to cut.
    assert "".join(part.text for part in cut_by_chars("世" * 50, str, 8)) == "世" * 50


def test_tokens_are_cut_at_the_end_of_a_sentence() -> None:
    tokens = [Token("a", "aa"), Token("b", "bb", ""), Token(".", "."), Token("c", "cc"), Token("d", "dd", "")]
    parts = list(cut_by_tokens(tokens, 10))
    assert [part.text for part in parts] == ["a b.", "c d"]
    assert [part.phonemes for part in parts] == ["aa bb.", "cc dd"]
    assert parts[0].words == [SpokenSpan("a", 0, 2), SpokenSpan("b.", 3, 5)]
    assert parts[1].words == [SpokenSpan("c", 0, 2), SpokenSpan("d", 3, 5)]
    # Words without phonemes are spoken by none, and a token that is too long in pieces.
    assert list(cut_by_tokens([Token("x", None)], 10)) == []
    pieces = [part.phonemes for part in cut_by_tokens([Token("long", "l" * 25)], 10)]
    assert pieces == ["l" * 10, "l" * 10, "l" * 5]


def test_words_are_found_clause_by_clause() -> None:
    assert aligned("Hi you!", "hˈI ju!") == [SpokenSpan("Hi", 0, 3), SpokenSpan("you!", 4, 6)]
    # In the first clause two words are one group.
    found = aligned("of the sea, and then", "ʌvðə sˈi, ænd ðˈɛn")
    assert [span.word for span in found] == ["and", "then"]
    assert aligned("3.5 of it", "θɹˈi pYnt fˈIv ʌvɪt") == []


def test_times_of_words_meet_in_the_middle_of_spaces() -> None:
    # Two words of two phonemes, a space between them: steps of 25 ms.
    part = {"text": "ab cd", "ids": [1, 2, SPACE, 3, 4], "length": 5}
    part["words"] = [SpokenSpan("ab", 0, 2), SpokenSpan("cd", 3, 5)]
    words = word_times(part, [5, 2, 3, 4, 1, 1, 9], SPACE)
    # Of the beginning, three steps are not counted.
    assert words == [
        {"word": "ab", "start": 2 / 40, "end": (2 + 5 + 2) / 40},
        {"word": "cd", "start": (2 + 5 + 2) / 40, "end": (2 + 9 + 2) / 40},
    ]


def test_a_language_is_the_voices_own_or_the_requests() -> None:
    def letter(voice: str, named: str | None) -> str:
        found = language_of(voice, named)
        assert found is not None
        return found.letter

    assert [letter(voice, None) for voice in ("af_heart", "bf_emma", "zm_yunxi", "x")] == ["a", "b", "z", "a"]
    assert [letter("bf_emma", name) for name in ("en", "English", "en-US", "en-gb")] == ["b", "b", "a", "b"]
    assert [letter("af_heart", name) for name in ("en", "fr", "french", "pt-br", "j")] == [*"affpj"]
    assert language_of("af_heart", "ipa") is None
    with pytest.raises(RequestError, match="does not speak 'tlh'"):
        language_of("af_heart", "tlh")


@pytest.mark.parametrize(
    ("voice", "parts"),
    [
        ("af_heart", [("af_heart", 1)]),
        ("A,b", [("a", 1), ("b", 1)]),
        ("a(2)+b(1)", [("a", 2), ("b", 1)]),
        (" a ( .5 ) + b", [("a", 0.5), ("b", 1)]),
    ],
)
def test_names_of_blends(voice: str, parts: list[tuple[str, float]]) -> None:
    assert voice_parts(voice) == [VoicePart(*part) for part in parts]


@pytest.mark.parametrize("voice", ["", "a,,b", "a(0)", "a(-1)+b", "a(2)(3)", "a b", "a+"])
def test_what_is_no_blend(voice: str) -> None:
    with pytest.raises(RequestError, match="a blend is written as"):
        voice_parts(voice)
