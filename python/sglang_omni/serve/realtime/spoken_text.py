"""Which sound of an answer speaks which of its text, so that both can be cut at the same place."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from sglang_omni.generation.fields import TranscriptionWord
from sglang_omni.generation.samples import Samples

# What closes a word: it is heard with it.
_MARKS = re.compile(r"[^\w\s]*")
# A voice's pace between its pauses, where nothing tells which sound speaks what.
_CHARACTERS_PER_SECOND = 21.0
_FRAME_S = 0.02
# What is this much below the loudest frame, for so many frames, is a pause.
_QUIET = 0.02
_PAUSE_FRAMES = 5


class Spoken:
    """The text and sound of one answer, piece by piece.

    A pipeline may tell when it speaks each word, or what each piece of sound speaks, as a sentence. Within
    such a piece, and in an answer of a pipeline that does not tell, the text is taken to be spoken at an even
    pace, without the pauses that the sound has.

    Attributes:
        seconds: How long the sound is.
        is_whole: True if all of the text has been spoken.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_whole = False
        self._pieces: list[tuple[str, float]] = []
        self._words: list[TranscriptionWord] = []
        # Of the sound's frames: their ends in seconds, and their loudest samples.
        self._ends: list[float] = [0.0]
        self._loudness: list[float] = []

    def add(self, text: str, samples: Samples, rate: int, words: Sequence[TranscriptionWord] = ()) -> None:
        """
        Args:
            text: What this sound speaks; empty if the pipeline does not tell.
            samples: float32 of shape (n,), n at least 1.
            rate: In Hz.
            words: Those that begin in it, timed from where the answer begins.
        """
        seconds = len(samples) / rate
        frames = -int(-seconds // _FRAME_S)
        begins = len(samples) * np.arange(frames) // frames
        self._loudness += np.maximum.reduceat(np.abs(samples), begins).tolist()
        self._ends += (self.seconds + np.arange(1, frames + 1) * (seconds / frames)).tolist()
        self.seconds += seconds
        self._pieces.append((text, seconds))
        self._words += words

    def cut(self, seconds: float, heard: str) -> None:
        """Forget the sound after so many seconds; ``heard``: the text that they spoke."""
        self.seconds, self.is_whole = min(seconds, self.seconds), True
        self._pieces = [(heard, self.seconds)]
        self._words = [word for word in self._words if word.end <= self.seconds]

    def until(self, seconds: float, text: str) -> str:
        """What has been heard of ``text``, the answer as far as it is written, after so many seconds of
        sound: whole words, the last one if at least half of it was heard."""
        if seconds >= self.seconds and self.is_whole:
            return text
        if self._words:
            return self._words_until(seconds, text)
        if not any(piece for piece, _ in self._pieces):
            pace = len(text) / self._voiced(0, self.seconds) if self.is_whole else _CHARACTERS_PER_SECOND
            return _words(text, pace * self._voiced(0, seconds))
        end, start = 0, 0.0
        for piece, length in self._pieces:
            found = text.find(piece, end)
            begin = end if found < 0 else found
            if seconds < start + length:
                share = self._voiced(start, seconds) / self._voiced(start, start + length)
                return _words(text[: begin + len(piece)], begin + len(piece) * share)
            start += length
            end = begin + len(piece)
        return text[:end]

    def _voiced(self, start: float, end: float) -> float:
        """Seconds of sound between these two moments without its pauses; above 0 if there is any sound."""
        loudness = np.array(self._loudness)
        is_pause = loudness < _QUIET * loudness.max(initial=0.0)
        changes = np.flatnonzero(np.diff(is_pause, prepend=False, append=False))
        for first, last in changes.reshape(-1, 2):
            if last - first < _PAUSE_FRAMES:
                is_pause[first:last] = False
        lengths = np.diff(self._ends) * np.where(is_pause, 1e-6, 1.0)
        voiced = np.concatenate(([0.0], np.cumsum(lengths)))
        return float(np.diff(np.interp((start, end), self._ends, voiced))[0])

    def _words_until(self, seconds: float, text: str) -> str:
        end = 0
        for word in self._words:
            share = (seconds - word.start) / max(word.end - word.start, 1e-6)
            if share <= 0:
                break
            if (begin := text.find(word.word, end)) < 0:
                continue  # it is read as something else than it is written
            if share < 1 and " " in word.word:  # a sentence
                return _words(text[: begin + len(word.word)], begin + share * len(word.word))
            if share < 0.5:
                break
            end = begin + len(word.word)
        mark = _MARKS.match(text, end)
        return text[: mark.end()] if mark and end else ""


def _words(text: str, characters: float) -> str:
    """The first so many characters of a text, up to the end of a word."""
    count = round(characters)
    if count >= len(text):
        return text
    return text[:count] if text[count].isspace() else text[: text.rfind(" ", 0, count) + 1].rstrip()
