"""Calls as JSON after a mark, as Hermes, Qwen, Llama and Mistral write them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from sglang_omni.answers.delta import Calls
from sglang_omni.answers.finder import CallFinder
from sglang_omni.answers.json_object import JsonObject, JsonValue
from sglang_omni.answers.stop_matching import partial_mark, settled

# Mistral's newer form: a name, perhaps an id, and then the arguments alone.
_NAMED = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]+\s*)?(?:\[ARGS\])?\s*(?=\{)")
_LONGEST_NAME = 256


@dataclass(frozen=True)
class JsonForm:
    """How a family marks its calls.

    Attributes:
        begin, end: Marks around calls, either may be missing. Without an end calls go on to other text.
        bare: The characters one of which begins a call without a mark, at the very beginning of an answer.
        named: True if the mark may be followed by a name and the arguments alone.
        is_special: True if the marks are special tokens, which users never see.
    """

    begin: str
    end: str = ""
    bare: str = ""
    named: bool = False
    is_special: bool = False


class JsonCalls(CallFinder):
    """Finds calls in a text that grows.

    What looks like a call and has no name is content, as are unknown names of calls without a mark. Once a
    call has begun, what follows is its arguments, whole or broken.

    Args:
        form: The family's marks.
        calls: Where the calls go.
        names: The tools that there are.
    """

    def __init__(self, form: JsonForm, calls: Calls, names: Collection[str]) -> None:
        super().__init__(calls)
        self._form = form
        self._names = names
        self._state: Literal["start", "text", "between", "object", "arguments"] = (
            "start" if form.bare else "text"
        )
        self._object = JsonObject(calls, None)
        self._value = JsonValue()
        self._is_bare = False

    @property
    def held(self) -> int:
        """The number of last characters that may yet be content or not."""
        undecided = self._state in ("between", "object")
        raw = len(self._object.raw) if self._state == "object" else 0
        return (len(self._lead) if undecided else 0) + raw + len(self._buffer)

    def finish(self) -> str:
        """The content that was held back. Called after the last text."""
        rest, self._buffer = self._buffer, ""
        if self._state == "object" and not self._object.has_begun:
            return self._lead + self._object.raw + rest
        if self._state == "between" and not self._calls:
            return self._lead + rest
        if self._state in ("start", "text") and not (self._calls and rest.isspace()):
            return rest
        return ""

    def _step(self) -> str:
        match self._state:
            case "start":
                return self._look_for_bare()
            case "text":
                return self._look_for_mark()
            case "between":
                return self._between()
            case "object":
                return self._read_object()
        length = self._value.take(self._buffer)
        self._calls.add(self._buffer[:length])
        self._buffer = self._buffer[length:]
        if self._value.is_over:
            self._state = "between"
        return ""

    def _look_for_bare(self) -> str:
        text = self._buffer.lstrip()
        if text and text[0] in self._form.bare:
            self._state, self._is_bare = "between", True
            self._lead = self._buffer[: len(self._buffer) - len(text)]
            self._buffer = text
        elif text:
            self._state = "text"
        return ""

    def _look_for_mark(self) -> str:
        mark = self._form.begin
        at = self._buffer.find(mark) if mark else -1
        if at < 0:
            length = settled(self._buffer, mark) if mark else len(self._buffer)
            content, self._buffer = self._buffer[:length], self._buffer[length:]
            return content
        content = self._buffer[:at].rstrip()
        end = at + len(mark)
        self._lead = self._buffer[len(content) : at if self._form.is_special else end]
        self._buffer = self._buffer[end:]
        self._state, self._is_bare = "between", False
        return content

    def _between(self) -> str:
        """After a mark, or after a call: another one, or the end."""
        form = self._form
        for mark, state in ((form.begin, "between"), (form.end, "text")):
            if mark and self._buffer.startswith(mark):
                self._buffer = self._buffer[len(mark) :]
                self._state = state  # type: ignore[assignment]
                return ""
            if mark and partial_mark(self._buffer, mark) == len(self._buffer):
                return ""
        first = self._buffer[0]
        if first == "{":
            names = self._names if self._is_bare else None
            self._object, self._state = JsonObject(self._calls, names), "object"
            return ""
        # Between calls some models write a brace too many.
        if first.isspace() or first in "[],;" or (first == "}" and self._calls):
            self._lead += first
            self._buffer = self._buffer[1:]
            return ""
        if form.named and not self._is_bare:
            found = _NAMED.match(self._buffer)
            if found is not None:
                self._calls.begin(found[1])
                self._buffer, self._lead = self._buffer[found.end() :], ""
                self._value, self._state = JsonValue(), "arguments"
                return ""
            if "{" not in self._buffer and len(self._buffer) < _LONGEST_NAME:
                return ""
        return self._give_back("")

    def _read_object(self) -> str:
        self._buffer = self._object.feed(self._buffer)
        if self._object.has_begun:
            self._lead = ""
        if self._object.state == "over":
            self._state = "between"
        elif self._object.state == "broken":
            return self._give_back(self._object.raw)
        return ""

    def _give_back(self, raw: str) -> str:
        """The text since the mark, which is content because no call followed."""
        lead, self._lead, self._state = self._lead, "", "text"
        return ("" if self._calls and not lead.strip(" \n[],;}") else lead) + raw
