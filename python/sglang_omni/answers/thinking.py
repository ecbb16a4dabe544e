"""Reasoning between two marks, such as ``<think>`` and ``</think>``, before the answer."""

from __future__ import annotations

from typing import Literal

from sglang_omni.answers.delta import Delta
from sglang_omni.answers.stop_matching import settled


class Thinking:
    """Splits reasoning from what follows it; white space around the marks belongs to neither.

    Reasoning begins at the very beginning or not at all: an answer may speak of such marks.

    Args:
        begin, end: The marks.
        inside: The prompt ends with the first mark, so that the answer begins with reasoning.
    """

    def __init__(self, begin: str, end: str, *, inside: bool) -> None:
        self._begin = begin
        self._end = end
        self._buffer = ""
        self._state: Literal["before", "opened", "reasoning", "closed", "answer"] = (
            "opened" if inside else "before"
        )

    @property
    def held(self) -> int:
        """The number of last characters that may yet be one or the other."""
        return len(self._buffer)

    def feed(self, text: str) -> Delta:
        if self._state == "answer":
            return Delta(text)
        self._buffer += text
        if self._state in ("before", "opened"):
            self._open()
        news = Delta()
        if self._state == "reasoning":
            news.reasoning = self._reasoning()
        if self._state == "closed":
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._state = "answer"
        if self._state == "answer":
            news.content, self._buffer = self._buffer, ""
        return news

    def finish(self) -> Delta:
        """What was held back. Called after the last text."""
        rest, self._buffer = self._buffer, ""
        if self._state in ("opened", "reasoning"):
            return Delta(reasoning=rest.rstrip())
        return Delta() if self._state == "closed" else Delta(rest)

    def _open(self) -> None:
        text = self._buffer.lstrip()
        if text.startswith(self._begin):
            # Also if the prompt ends with it: some models repeat it.
            self._state, text = "opened", text[len(self._begin) :].lstrip()
        if self._begin.startswith(text):
            if self._state == "opened":
                self._buffer = text
        elif self._state == "opened":
            self._state, self._buffer = "reasoning", text
        else:
            self._state = "answer"

    def _reasoning(self) -> str:
        at = self._buffer.find(self._end)
        if at >= 0:
            told, self._buffer = self._buffer[:at].rstrip(), self._buffer[at + len(self._end) :]
            self._state = "closed"
            return told
        length = settled(self._buffer, self._end)
        told, self._buffer = self._buffer[:length], self._buffer[length:]
        return told
