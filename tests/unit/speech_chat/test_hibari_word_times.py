"""Which words of a text are spoken when, by the frames of the phonemes that are read for them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from sglang_omni.models.speech_chat.components.word_times import Pronounced, pronounced, words_of

VOCABULARY = {letter: index for index, letter in enumerate("abcdefg ,.ˈ", 1)}


def test_a_word_lasts_as_its_phonemes_do() -> None:
    """A mark is a pause, a phoneme that the model does not know takes no frame, pieces follow one another."""
    tokens = [
        SimpleNamespace(text="A", phonemes="ˈab", whitespace=" "),
        SimpleNamespace(text="$", phonemes="", whitespace=""),
        SimpleNamespace(text="5", phonemes="cd eX", whitespace=""),
        SimpleNamespace(text=",", phonemes=",", whitespace=" "),
        SimpleNamespace(text="—", phonemes=None, whitespace=" "),
        SimpleNamespace(text="f", phonemes="f", whitespace=""),
        SimpleNamespace(text=".", phonemes=".", whitespace=""),
    ]
    pieces = ["ˈab cd eX,", "f."]
    frames = [np.array([2, 1, 1, 1, 3, 2, 2, 1, 2, 5, 1]), np.array([1, 4, 6, 2])]
    assert list(pronounced(tokens, pieces, frames, VOCABULARY, 0.5)) == [
        Pronounced("A", 1.0, 2.5),
        Pronounced("$5,", 4.0, 7.5),
        Pronounced("f.", 11.0, 13.0),
    ]


def test_words_that_are_read_as_others_have_their_time() -> None:
    read = [
        Pronounced("Doctor", 0.0, 1.0),
        Pronounced("Lee", 1.0, 2.0),
        Pronounced("paid", 2.0, 3.0),
        Pronounced("5", 3.0, 4.0),
        Pronounced("million", 4.0, 5.0),
        Pronounced("dollars", 5.0, 7.0),
        Pronounced("at", 7.0, 8.0),
        Pronounced("seven", 8.0, 9.0),
        Pronounced("oh", 9.0, 10.0),
        Pronounced("two.", 10.0, 12.0),
    ]
    words = [tuple(each.values()) for each in words_of("Dr. Lee 日本 — paid $5 million at 7:02 Uhr.", read)]
    assert words == [
        ("Dr.", 0.0, 1.0),
        ("Lee", 1.0, 2.0),
        ("paid", 2.0, 3.0),
        ("$5", 3.0, 4.0),
        ("million", 4.0, 7.0),
        ("at", 7.0, 8.0),
        ("7:02", 8.0, 10.0),
        ("Uhr.", 10.0, 12.0),
    ]
    assert words_of("...", read) == []
