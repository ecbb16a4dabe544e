"""Splitting of text that arrives in pieces into sentences, each as soon as its end is certain."""

from __future__ import annotations

import re

# Abbreviations, in lower case and without their last period.
_ABBREVIATION_LIST = """
    mr mrs ms dr prof st mt ft jr sr rev hon gen col maj capt lt sgt cmdr gov sen rep pres
    jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri
    e.g i.e cf viz vs al approx ca fig figs eq no nos vol vols ch pp ed eds trans dept univ assn
    inc ltd co corp bros ave blvd rd hwy ph.d b.c a.d
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
_TERMINATOR = re.compile(r"[.!?…]+[\"'”’)\]*_]*(?=\s)|[。！？]+[”’」』）]*(?=[^。！？”’」』）])|\n+")
_LAST_WORD = re.compile(r"[\w.'’-]*\Z")
_CLAUSE_END = re.compile(r"[,;:—–](?=\s)")


class SentenceSplitter:
    """Converts text deltas to whole sentences.

    A sentence longer than ``max_chars`` is cut after its last clause mark within that length, else at a
    space, so that speech does not wait for a missing period. With ``first_clause_chars``, the first sentence
    is cut after a clause of at least that length, so that speech begins early; with ``every_clause``, every
    sentence is cut after each such clause.
    """

    def __init__(
        self, max_chars: int = 280, first_clause_chars: int | None = None, *, every_clause: bool = False
    ) -> None:
        self._max_chars = max_chars
        self._first_clause_chars = first_clause_chars
        self._every_clause = every_clause
        self._pending = ""

    def feed(self, delta: str) -> list[str]:
        """Sentences that ``delta`` completes, stripped of surrounding white space."""
        self._pending = (self._pending + delta).lstrip(" \t")
        sentences = []
        while (end := self._next_end()) is not None:
            sentence = self._pending[:end].strip()
            self._pending = self._pending[end:].lstrip(" \t")
            if sentence:
                sentences.append(sentence)
                if not self._every_clause:
                    self._first_clause_chars = None
        return sentences

    def cut(self, min_chars: int) -> list[str]:
        """A sentence's text up to its last clause mark so far, if that has at least ``min_chars``."""
        ends = [mark.end() for mark in _CLAUSE_END.finditer(self._pending)]
        if not ends or ends[-1] < min_chars:
            return []
        clause, self._pending = self._pending[: ends[-1]].strip(), self._pending[ends[-1] :].lstrip(" \t")
        self._first_clause_chars = None
        return [clause]

    def flush(self) -> list[str]:
        """The rest of the text, once it is complete."""
        rest, self._pending = self._pending.strip(), ""
        return [rest] if rest else []

    def _next_end(self) -> int | None:
        clause_end = self._first_clause_end()
        for mark in _TERMINATOR.finditer(self._pending):
            if mark.end() > (clause_end or self._max_chars):
                break
            if mark[0][0] in "\n。！？":
                return mark.end()
            following = self._pending[mark.end() :].lstrip(" \t")
            if not following:
                return None  # the next character decides
            if not _continues(self._pending[: mark.start()], mark[0], following[0]):
                return mark.end()
        if clause_end is not None:
            return clause_end
        if len(self._pending) <= self._max_chars:
            return None
        return self._forced_end()

    def _first_clause_end(self) -> int | None:
        if self._first_clause_chars is None:
            return None
        for mark in _CLAUSE_END.finditer(self._pending, 0, self._max_chars + 1):
            if mark.end() >= self._first_clause_chars:
                return mark.end()
        return None

    def _forced_end(self) -> int:
        head = self._pending[: self._max_chars]
        clauses = [mark.end() for mark in _CLAUSE_END.finditer(self._pending, 0, self._max_chars + 1)]
        if clauses:
            return clauses[-1]
        space = head.rfind(" ")
        return space + 1 if space > 0 else self._max_chars


def passages(text: str, max_bytes: int) -> list[str]:
    """``text`` in passages of whole sentences, each as long as ``max_bytes`` of UTF-8 allow.

    Bytes, because a character of Chinese takes about three times as long to say as one of English. A sentence
    that is longer is cut as ``SentenceSplitter`` cuts it. A passage without any letter or digit is left out.
    """
    size = len(text.encode("utf-8", errors="replace"))
    most = max(1, max_bytes * len(text) // max(1, size))
    splitter = SentenceSplitter(most)
    found: list[str] = []
    start = end = 0
    for sentence in [*splitter.feed(text), *splitter.flush()]:
        begin = text.index(sentence, end)
        if end > start and begin + len(sentence) - start > most:
            found.append(text[start:end].strip())
            start = begin
        end = begin + len(sentence)
    found.append(text[start:].strip())
    return [passage for passage in found if any(map(str.isalnum, passage))]


def _continues(before: str, mark: str, following: str) -> bool:
    """True if the sentence goes on after ``mark``, as after an abbreviation, an initial or a list number."""
    if following.islower():
        return True
    if not mark.startswith(".") or mark.startswith(".."):
        return False
    match = _LAST_WORD.search(before)
    word = match[0] if match else ""
    if word.lower() in _ABBREVIATIONS:
        return True
    if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":
        return True
    # "1. Paris": a number alone before its period numbers an item; "in 1999." ends a sentence.
    return word.isdigit() and not before[: len(before) - len(word)].strip()
