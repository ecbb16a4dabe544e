"""Ends of sentences, for text in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_omni.preprocessing.sentences import SentenceSplitter, passages


def split_sentences(text: str, max_chars: int = 280, first_clause_chars: int | None = None) -> list[str]:
    splitter = SentenceSplitter(max_chars, first_clause_chars)
    return splitter.feed(text) + splitter.flush()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("   \n ", []),
        ("Paris", ["Paris"]),
        ("It is Paris. It is big!", ["It is Paris.", "It is big!"]),
        ("Really?! Yes.", ["Really?!", "Yes."]),
        ("Wait... What?", ["Wait...", "What?"]),
        ("Wait... and see.", ["Wait... and see."]),
        ("Pi is 3.14 or so. Next.", ["Pi is 3.14 or so.", "Next."]),
        ("It costs $1,250.50. Buy it.", ["It costs $1,250.50.", "Buy it."]),
        ("Dr. Smith met Mrs. Jones. They spoke.", ["Dr. Smith met Mrs. Jones.", "They spoke."]),
        ("J. K. Rowling wrote it. I did.", ["J. K. Rowling wrote it.", "I did."]),
        ("So do I. You too.", ["So do I.", "You too."]),
        ("Fruit, e.g. Apples, is good. Yes.", ["Fruit, e.g. Apples, is good.", "Yes."]),
        ("It was 1999. Then came 2000.", ["It was 1999.", "Then came 2000."]),
        ("Two:\n1. Paris\n2. Rome. Both.", ["Two:", "1. Paris", "2. Rome.", "Both."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("(It is.) Good.", ["(It is.)", "Good."]),
        ("See example.com for more. Done.", ["See example.com for more.", "Done."]),
        ("First line\n\nSecond line", ["First line", "Second line"]),
        ("你好。再见！好", ["你好。", "再见！", "好"]),
    ],
)
def test_sentence_ends(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_a_sentence_is_given_out_before_the_next_one_is_complete() -> None:
    splitter = SentenceSplitter()

    assert splitter.feed("It is Paris.") == []  # "3." may become "3.14"
    assert splitter.feed(" It") == ["It is Paris."]
    assert splitter.flush() == ["It"]
    assert splitter.flush() == []


def test_a_long_sentence_is_cut_at_its_last_clause() -> None:
    text = "one two, three four, " + "five " * 30

    pieces = split_sentences(text, max_chars=60)

    assert pieces[0] == "one two, three four,"
    assert all(len(piece) <= 60 for piece in pieces)
    assert " ".join(pieces).split() == text.split()


def test_a_word_without_end_is_cut() -> None:
    assert [len(piece) for piece in split_sentences("x" * 250, max_chars=100)] == [100, 100, 50]


def test_the_first_sentence_alone_is_cut_after_a_clause() -> None:
    text = "Well, the sea is vast, deep and old. It is, as far as we know, very wide. End"

    assert split_sentences(text, first_clause_chars=10) == [
        "Well, the sea is vast,",
        "deep and old.",
        "It is, as far as we know, very wide.",
        "End",
    ]


def test_a_first_sentence_that_ends_before_a_long_clause_stays_whole() -> None:
    assert split_sentences("Yes. But, you see, no", first_clause_chars=8) == ["Yes.", "But, you see, no"]


PIECES = st.lists(
    st.sampled_from([*"aA1 .,!?\n'\")", "Dr.", "。", "Hello", " the", "3.14", "...", "  ", ", "]), max_size=60
)


@given(PIECES, st.sampled_from([None, 6]))
def test_the_pieces_that_text_arrives_in_make_no_difference(pieces: list[str], clause: int | None) -> None:
    splitter = SentenceSplitter(40, clause)
    incremental = [sentence for piece in pieces for sentence in splitter.feed(piece)] + splitter.flush()

    assert incremental == split_sentences("".join(pieces), 40, clause)


@given(PIECES)
def test_nothing_but_white_space_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)

    assert "".join("".join(split_sentences(text, max_chars=40)).split()) == "".join(text.split())


def test_a_sentence_is_cut_on_request_after_its_last_clause():
    splitter = SentenceSplitter()
    assert splitter.feed("Well, after the war, the tow") == []
    assert splitter.cut(min_chars=21) == []
    assert splitter.cut(min_chars=20) == ["Well, after the war,"]
    assert splitter.cut(min_chars=1) == []
    assert splitter.feed("n grew. A") == ["the town grew."]
    assert splitter.flush() == ["A"]


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        (" One. Two. ", 300, ["One. Two."]),
        ("One. Two. Three.", 10, ["One. Two.", "Three."]),
        ("One. Two.\n\nThree.  Four.", 13, ["One. Two.", "Three.  Four."]),
        ("A sentence that is long, with a comma. B.", 25, ["A sentence that is long,", "with a comma. B."]),
        # Of three bytes a character.
        ("你好。我很好。你呢？", 15, ["你好。", "我很好。", "你呢？"]),
    ],
)
def test_passages_are_whole_sentences(text: str, most: int, expected: list[str]) -> None:
    assert passages(text, most) == expected


def test_passages_lose_nothing() -> None:
    text = "Mr. Fox asks: why? 'Never!' he says...\nIt is e.g. 3.5 km, or more; " * 20
    found = passages(text, 60)
    assert len(found) > 20
    assert "".join("".join(found).split()) == "".join(text.split())
    assert max(map(len, found)) <= 60


def test_what_cannot_be_spoken_makes_no_passage() -> None:
    assert passages("... \n !", 30) == passages("", 30) == []
    assert passages("One is here. ...", 13) == ["One is here."]
