"""The reader of one answer, and what a request tells of how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

from sglang_omni.answers.delta import Calls, Delta
from sglang_omni.answers.formats import (
    CALL_FORMATS,
    PLAIN,
    PLAIN_NAME,
    THINKING,
    CallFormat,
    CallParser,
    Tools,
)
from sglang_omni.answers.sglang_parsers import SGLangCalls, SGLangThinking
from sglang_omni.answers.thinking import Thinking


class Reading(TypedDict):
    """How an answer must be read, from the stage that makes the prompt to the one that writes.

    Attributes:
        calls: The name of the format of calls; None if there are none to find.
        thinking: The name of the marks around reasoning; None if there are none to find.
        inside: The prompt ends within reasoning.
        sampling: Sampling parameters that take the place of the request's own.
    """

    calls: str | None
    thinking: str | None
    inside: bool
    sampling: dict[str, Any]


class ThinkingParser(Protocol):
    """Splits reasoning from what follows it."""

    @property
    def held(self) -> int | None:
        """The number of last characters that it holds back; None if it does not say so."""

    def feed(self, text: str) -> Delta: ...

    def finish(self) -> Delta: ...


class AnswerReader:
    """Splits the text of one answer while it is written.

    Args:
        thinking: None if the model does not think.
        parser: None if there are no calls to find.
        calls: Where the parser puts calls.

    Attributes:
        content, reasoning: All of them so far.
        calls: All calls so far.
        is_thinking: True until the answer's content begins.
    """

    def __init__(self, thinking: ThinkingParser | None, parser: CallParser | None, calls: Calls) -> None:
        self.calls = calls
        self._thinking = thinking
        self._parser = parser
        self._content: list[str] = []
        self._reasoning: list[str] = []

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def is_thinking(self) -> bool:
        return bool(self._reasoning) and not (self._content or self.calls)

    @property
    def held(self) -> int | None:
        """The number of last characters that may yet be content or not; None if a parser does not say so."""
        thinking = 0 if self._thinking is None else self._thinking.held
        parser = 0 if self._parser is None else self._parser.held
        return None if thinking is None or parser is None else thinking + parser

    def feed(self, text: str) -> Delta:
        news = Delta(text) if self._thinking is None else self._thinking.feed(text)
        if self._parser is not None and news.content:
            news.content = self._parser.feed(news.content)
        return self._told(news)

    def finish(self) -> Delta:
        """What was held back. Called after the last text."""
        news = Delta() if self._thinking is None else self._thinking.finish()
        if self._parser is not None:
            news.content = (self._parser.feed(news.content) if news.content else "") + self._parser.finish()
        return self._told(news)

    def _told(self, news: Delta) -> Delta:
        news.calls = self.calls.take()
        if news.content:
            self._content.append(news.content)
        if news.reasoning:
            self._reasoning.append(news.reasoning)
        return news


def reader_of(reading: Reading, params: Mapping[str, Any]) -> AnswerReader:
    """The reader of a request's answer.

    Args:
        params: The request's, with its tools.
    """
    thinking: ThinkingParser | None = None
    if (name := reading["thinking"]) is not None:
        if name in THINKING:
            thinking = Thinking(*THINKING[name], inside=reading["inside"])
        else:
            thinking = SGLangThinking(name, inside=reading["inside"])
    found = reading["calls"]
    form = _format(found)
    calls = Calls(form.new_id, None if params.get("parallel_tool_calls", True) else 1)
    return AnswerReader(thinking, None if found is None else _parser(found, calls, params["tools"]), calls)


def visible_tokens(reading: Reading) -> Sequence[str]:
    """Special tokens that the reader must see: they mark calls or reasoning."""
    marks = THINKING.get(reading["thinking"] or "", ())
    return (*_format(reading["calls"]).tokens, *marks)


def is_foreign(reading: Reading) -> bool:
    """True if a parser of SGLang reads the answer, which may look for any special token."""
    calls, thinking = reading["calls"], reading["thinking"]
    return (calls is not None and calls != PLAIN_NAME and calls not in CALL_FORMATS) or (
        thinking is not None and thinking not in THINKING
    )


def _format(name: str | None) -> CallFormat:
    return CALL_FORMATS.get(name or "", PLAIN)


def _parser(name: str, calls: Calls, tools: Tools) -> CallParser:
    if name == PLAIN_NAME or name in CALL_FORMATS:
        return _format(name).parser(calls, tools)
    return SGLangCalls(name, calls, tools)
