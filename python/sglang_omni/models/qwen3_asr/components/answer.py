"""The form of Qwen3-ASR's answers: a language, a mark, and the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_omni.models.qwen3_asr.components.repetitions import WithoutLoops
from sglang_omni.models.recordings.growing_text import TrimmedText
from sglang_omni.preprocessing.languages import language_code
from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

TEXT_MARK = "<asr_text>"
_LANGUAGE = "language "
# A longer beginning without the mark is text.
_LONGEST_HEAD = 64
_NAMES = (
    "Arabic Cantonese Chinese Czech Danish Dutch English Filipino Finnish French German Greek Hindi "
    "Hungarian Indonesian Italian Japanese Korean Macedonian Malay Persian Polish Portuguese Romanian "
    "Russian Spanish Swedish Thai Turkish Vietnamese"
)
_OTHER_CODES = {"filipino": "fil"}


def code_of(name: str) -> str:
    """The code of a language that the model names; one that it makes up is returned as it is."""
    return _OTHER_CODES.get(name.lower()) or language_code(name)


# The names that the model knows, by code.
LANGUAGES = {code_of(name): name for name in _NAMES.split()}


class PieceAnswer:
    """The answer to one piece of a recording, while it is written. It is a ``TextSink`` of an engine.

    Without a language in the prompt, the model begins with "language NAME<asr_text>", which is no text. As by
    the model's authors, loops are removed before that is read.

    Args:
        language_is_given: True if the prompt has the language and the mark.

    Attributes:
        language: The code of the language that the model names; None if it names none.
    """

    def __init__(self, tokenizer: Tokenizer, *, language_is_given: bool) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._written, self._without_loops = TrimmedText(), WithoutLoops()
        self._trimmed = TrimmedText()
        self._in_text = language_is_given
        self._head = ""
        self._new = ""
        self.language: str | None = None

    @property
    def text(self) -> str:
        return self._trimmed.text

    def feed(self, token_ids: Sequence[int]) -> bool:
        self._detokenizer.feed(token_ids)
        self._read(self._new_text(), final=False)
        return False

    def finish(self) -> None:
        self._detokenizer.finish()
        self._read(self._new_text() + self._without_loops.finish(), final=True)

    def take(self) -> str:
        """The text that is new since the last call."""
        new, self._new = self._new, ""
        return new

    def _new_text(self) -> str:
        return self._without_loops.add(self._written.add(self._detokenizer.take()))

    def _read(self, new: str, *, final: bool) -> None:
        if not self._in_text:
            self._head += new
            head, mark, text = self._head.partition(TEXT_MARK)
            if mark:
                named = head.strip()[len(_LANGUAGE) :].strip()
                if head.strip().lower().startswith(_LANGUAGE) and named and named.lower() != "none":
                    self.language = code_of(named)
                new = text
            elif final or not _may_be_head(self._head):
                new = self._head
            else:
                return
            self._in_text = True
        self._new += self._trimmed.add(new)


def _may_be_head(text: str) -> bool:
    start = text.lstrip().lower()
    return len(start) <= _LONGEST_HEAD and (start.startswith(_LANGUAGE) or _LANGUAGE.startswith(start))
