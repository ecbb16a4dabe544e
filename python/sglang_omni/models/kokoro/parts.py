"""A text's parts, each spoken at once: its phonemes, and which of them are whose word's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

_Item = TypeVar("_Item")

PUNCTUATION = frozenset(';:,.!?—…"“”()«»¿¡')
# Characters of a part that is not cut by its phonemes, as its authors have it.
_CHARS = 400
_SENTENCE = re.compile(r"([.!?]+)")
# Where a part that is too long is cut, the best first.
_CUTS = (r"(?<=[.!?…。！？])", r"(?<=[:;：；])", r"(?<=[,—、，])", r"(?<=\s)")
_WATERFALL = ("!.?…", ":;", ",—")
_CLOSING = (")", "”")


class SpokenSpan(NamedTuple):
    """A word of a text, and the places of its phonemes: from ``first`` to before ``end``."""

    word: str
    first: int
    end: int


class SpokenPart(NamedTuple):
    text: str
    phonemes: str
    words: list[SpokenSpan]


def cut_by_chars(
    text: str, phonemes_of: Callable[[str], str], most_phonemes: int, most_chars: int = _CHARS
) -> Iterator[SpokenPart]:
    """Parts of whole sentences, as the authors' pipeline has those of other languages than English.

    What it would cut off, as it takes too many phonemes, is a part of its own here.
    """
    pieces = _SENTENCE.split(text)
    sentences = [sentence + mark for sentence, mark in zip(pieces[::2], [*pieces[1::2], ""], strict=True)]
    chunk = ""
    for sentence in [*sentences, None]:
        if sentence is not None and len(chunk) + len(sentence) <= most_chars:
            chunk += sentence
            continue
        if chunk.strip():
            yield from _cut(chunk.strip(), phonemes_of, most_phonemes)
        chunk = sentence or ""


def _cut(text: str, phonemes_of: Callable[[str], str], most: int) -> Iterator[SpokenPart]:
    phonemes = phonemes_of(text)
    if len(phonemes) <= most or len(text) < 2:
        if phonemes:
            yield SpokenPart(text, phonemes[:most], aligned(text, phonemes[:most]))
        return
    middle = len(text) // 2
    for pattern in _CUTS:
        places = [cut.start() for cut in re.finditer(pattern, text) if 0 < cut.start() < len(text)]
        if places:
            middle = min(places, key=lambda place: abs(place - len(text) // 2))
            break
    for half in (text[:middle].strip(), text[middle:].strip()):
        yield from _cut(half, phonemes_of, most)


def cut_by_tokens(tokens: Sequence[Any], most: int) -> Iterator[SpokenPart]:
    """Parts of the tokens of ``misaki.en``, as the authors' pipeline has those of English.

    A part has at most ``most`` phonemes, and ends at the last end of a sentence in it, else of a clause.
    """
    held: list[Any] = []
    count = 0
    for token in tokens:
        token.phonemes = token.phonemes or ""
        following = token.phonemes + (" " if token.whitespace else "")
        if count + len(following.rstrip()) > most and held:
            end = _last_end(held, count + len(following.rstrip()), most)
            yield from _of_tokens(held[:end], most)
            held = held[end:]
            count = len(_joined(held))
            if not held:
                following = following.lstrip()
        held.append(token)
        count += len(following)
    yield from _of_tokens(held, most)


def _last_end(tokens: Sequence[Any], count: int, most: int) -> int:
    for marks in _WATERFALL:
        places = [place for place, token in enumerate(tokens) if token.phonemes and token.phonemes in marks]
        if not places:
            continue
        end = places[-1] + 1
        if end < len(tokens) and tokens[end].phonemes in _CLOSING:
            end += 1
        if count - len(_joined(tokens[:end])) <= most:
            return end
    return len(tokens)


def _joined(tokens: Sequence[Any]) -> str:
    return "".join(token.phonemes + (" " if token.whitespace else "") for token in tokens).strip()


def _of_tokens(tokens: Sequence[Any], most: int) -> Iterator[SpokenPart]:
    phonemes = _joined(tokens)
    text = "".join(token.text + token.whitespace for token in tokens).strip()
    if not phonemes:
        return
    whole = "".join(token.phonemes + (" " if token.whitespace else "") for token in tokens)
    place = len(whole.lstrip()) - len(whole)
    words: list[SpokenSpan] = []
    word, first, end = "", None, 0
    for index, token in enumerate(tokens):
        word += token.text
        if token.phonemes.strip() and not PUNCTUATION.issuperset(token.phonemes):
            first = place if first is None else first
            end = place + len(token.phonemes)
        place += len(token.phonemes) + bool(token.whitespace)
        if token.whitespace or index == len(tokens) - 1:
            if first is not None:
                words.append(SpokenSpan(word, first, end))
            word, first = "", None
    for start in range(0, len(phonemes), most):
        # More than one only of a single token that is longer.
        stop = start + most
        inside = [each for each in words if start <= each.first and each.end <= stop]
        yield SpokenPart(
            text if not start else "",
            phonemes[start:stop],
            [SpokenSpan(each.word, each.first - start, each.end - start) for each in inside],
        )


def aligned(text: str, phonemes: str) -> list[SpokenSpan]:
    """The words of a text by their phonemes, where as many groups of these are between spaces.

    Where they are not as many in all, clauses are compared one by one, and those that differ left out.
    """
    words = text.split()
    groups = [SpokenSpan(found[0], *found.span()) for found in re.finditer(r"\S+", phonemes)]
    if len(words) == len(groups):
        return _paired(words, groups)
    clauses, sounded = _clauses(words, str), _clauses(groups, lambda group: group.word)
    if len(clauses) != len(sounded):
        return []
    pairs = zip(clauses, sounded, strict=True)
    return [span for mine, theirs in pairs if len(mine) == len(theirs) for span in _paired(mine, theirs)]


def _clauses(items: Sequence[_Item], text_of: Callable[[_Item], str]) -> list[list[_Item]]:
    found: list[list[_Item]] = [[]]
    for item in items:
        found[-1].append(item)
        if text_of(item)[-1] in PUNCTUATION:
            found.append([])
    return [clause for clause in found if clause]


def _paired(words: Sequence[str], groups: Sequence[SpokenSpan]) -> list[SpokenSpan]:
    spans = []
    for word, (sounds, first, end) in zip(words, groups, strict=True):
        inner = sounds.strip("".join(PUNCTUATION))
        if inner and any(map(str.isalnum, word)):
            begin = first + sounds.index(inner)
            spans.append(SpokenSpan(word, begin, min(begin + len(inner), end)))
    return spans
