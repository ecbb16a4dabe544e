"""The text of a transcript while it is written, from tokens to pieces that join to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TrimmedText:
    """Pieces of a text without white space at its two ends, none of which is ever taken back.

    Attributes:
        text: The pieces so far, joined.
    """

    def __init__(self) -> None:
        # White space that is part of the text if more follows.
        self._space = ""
        self.text = ""

    def add(self, new: str) -> str:
        """The piece that is certain with the text ``new``."""
        if not self.text:
            new = new.lstrip()
        whole = self._space + new
        piece = whole.rstrip()
        self._space = whole[len(piece) :]
        self.text += piece
        return piece


class GrowingText:
    """A ``TrimmedText`` from tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._trimmed = TrimmedText()

    @property
    def text(self) -> str:
        """The pieces so far, joined."""
        return self._trimmed.text

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is certain with these tokens, beyond the earlier pieces."""
        self._detokenizer.feed(tokens)
        return self._trimmed.add(self._detokenizer.take())

    def finish(self) -> str:
        """The last piece."""
        self._detokenizer.finish()
        return self._trimmed.add(self._detokenizer.take())
