"""Which sound of an answer speaks which of its text, so that both can be cut at the same place."""

from __future__ import annotations

# A voice's pace, where nothing tells which sound speaks what.
_CHARACTERS_PER_SECOND = 15.0


class Spoken:
    """The text and sound of one answer, piece by piece.

    A pipeline may tell what each piece of sound speaks, as a sentence. Within such a piece, and in an answer
    of a pipeline that does not tell, the text is taken to be spoken at an even pace.

    Attributes:
        seconds: How long the sound is.
        is_whole: True if all of the text has been spoken.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_whole = False
        self._pieces: list[tuple[str, float]] = []

    def add(self, text: str, seconds: float) -> None:
        """``text``: what this sound speaks; empty if the pipeline does not tell."""
        self.seconds += seconds
        self._pieces.append((text, seconds))

    def cut(self, seconds: float, heard: str) -> None:
        """Forget the sound after so many seconds; ``heard``: the text that they spoke."""
        self.seconds, self.is_whole = min(seconds, self.seconds), True
        self._pieces = [(heard, self.seconds)]

    def until(self, seconds: float, text: str) -> str:
        """What has been heard of ``text``, the answer as far as it is written, after so many seconds of
        sound: whole words."""
        if seconds >= self.seconds and self.is_whole:
            return text
        if not any(piece for piece, _ in self._pieces):
            pace = len(text) / self.seconds if self.is_whole and self.seconds else _CHARACTERS_PER_SECOND
            return _words(text, pace * seconds)
        end = 0
        for piece, length in self._pieces:
            found = text.find(piece, end)
            begin = end if found < 0 else found
            if seconds < length:
                return _words(text[: begin + len(piece)], begin + len(piece) * seconds / length)
            seconds -= length
            end = begin + len(piece)
        return text[:end]


def _words(text: str, characters: float) -> str:
    """The first so many characters of a text, up to the end of a word."""
    count = int(characters)
    if count >= len(text):
        return text
    return text[:count] if text[count].isspace() else text[: text.rfind(" ", 0, count) + 1].rstrip()
