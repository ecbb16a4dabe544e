"""Texts to phonemes, by the authors' ``misaki`` and what it uses, which this package brings none of.

Each language's part of it is imported when the first text in it comes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from sglang_omni.models.kokoro.components.checkpoint import KokoroCheckpoint
from sglang_omni.models.kokoro.languages import BY_LETTER, KokoroLanguage
from sglang_omni.models.kokoro.parts import SpokenPart, cut_by_chars, cut_by_tokens

logger = logging.getLogger(__name__)

# misaki would download it.
_ENGLISH_MODEL = "en_core_web_sm"


class KokoroPhonemes:
    """
    Args:
        checkpoint: The model's.
        most: Phonemes of a part; at most ``checkpoint.max_phonemes``.
    """

    def __init__(self, checkpoint: KokoroCheckpoint, most: int) -> None:
        self._most = min(most, checkpoint.max_phonemes)
        self._spells_chinese = checkpoint.spells_chinese
        self._english = cache(_english)
        self._others = cache(self._other)
        if not find_spec(_ENGLISH_MODEL):
            logger.info(
                "spaCy's %s is not installed, so English is turned into phonemes by espeak-ng alone",
                _ENGLISH_MODEL,
            )

    def __call__(self, text: str, language: KokoroLanguage | None) -> Iterator[SpokenPart]:
        """The parts of a text, in order; none if nothing of it is spoken.

        Args:
            language: None if the text is phonemes already.

        Raises:
            RequestError: What the language needs is not installed.
        """
        if language is not None:
            language.check_installed()
        # Its authors speak lines one by one.
        for line in filter(str.strip, re.split(r"\n+", text.strip())):
            if language is None:
                yield from cut_by_chars(line, str, self._most, self._most)
            elif language.letter in "ab" and find_spec(_ENGLISH_MODEL):
                yield from cut_by_tokens(self._english(language.letter)(line)[1], self._most)
            else:
                phonemes_of = self._others(language)
                yield from cut_by_chars(line, phonemes_of, self._most, min(self._most, 400))

    def _other(self, language: KokoroLanguage) -> Callable[[str], str]:
        if language.letter == "j":
            from misaki import ja

            return _first(ja.JAG2P())
        if language.letter == "z":
            from misaki import zh

            if not self._spells_chinese:
                return _first(zh.ZHG2P())
            return _first(zh.ZHG2P(version="1.1", en_callable=self._english_in_chinese))
        from misaki import espeak

        if language.letter in "ab":
            return _first(partial(_as_token, espeak.EspeakFallback(british=language.letter == "b")))
        return _first(espeak.EspeakG2P(language=language.espeak))

    def _english_in_chinese(self, text: str) -> str:
        english = BY_LETTER["a"]
        english.check_installed()
        if find_spec(_ENGLISH_MODEL):
            phonemes: str = self._english("a")(text)[0]
            return phonemes
        return self._others(english)(text)


def _english(letter: str) -> Callable[[str], Any]:
    from misaki import en, espeak

    british = letter == "b"
    spoken: Callable[[str], Any] = en.G2P(
        trf=False, british=british, fallback=espeak.EspeakFallback(british), unk=""
    )
    return spoken


def _as_token(fallback: Callable[[Any], Any], text: str) -> Any:
    """Of a whole text, what misaki has for words that its dictionary lacks: English in its own letters."""
    from misaki.token import MToken

    return fallback(MToken(text, "", ""))


def _first(phonemes_of: Callable[[str], Any]) -> Callable[[str], str]:
    return lambda text: phonemes_of(text)[0] or ""
